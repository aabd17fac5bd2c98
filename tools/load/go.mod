module twinlog/load

go 1.21
