"""The jobs of `twinlog spark`, one module each, callable from Python too.

Every job function takes plain values, starts a local session when none is given, reports to a
`Progress` and returns a `Summary`. Nothing rests on the driver's files where workers run
elsewhere: stores and archives are paths that the workers can read.
"""
