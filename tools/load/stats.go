package main

import (
	"bytes"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// samples belong to one goroutine; totals collects them at the end.
type samples struct {
	latencies []int64
	codes     map[int]int64
}

func (s *samples) add(nanoseconds int64, code int) {
	if s.codes == nil {
		s.codes = map[int]int64{}
	}
	s.latencies = append(s.latencies, nanoseconds)
	s.codes[code]++
}

type totals struct {
	messages atomic.Int64
	bytes    atomic.Int64
	mutex    sync.Mutex
	all      samples
}

func (t *totals) merge(s *samples) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.all.latencies = append(t.all.latencies, s.latencies...)
	if t.all.codes == nil {
		t.all.codes = map[int]int64{}
	}
	for code, count := range s.codes {
		t.all.codes[code] += count
	}
}

// percentiles in milliseconds.
func (t *totals) percentiles(points map[string]float64) map[string]float64 {
	l := t.all.latencies
	sort.Slice(l, func(i, j int) bool { return l[i] < l[j] })
	out := map[string]float64{}
	for name, q := range points {
		if len(l) > 0 {
			out[name] = float64(l[int(q*float64(len(l)-1))]) / 1e6
		}
	}
	return out
}

// usage of a process, from /proc.
type usage struct {
	CPUSeconds  float64 `json:"cpu_s"`
	AnonymousMB float64 `json:"anonymous_mb"`
	ResidentMB  float64 `json:"resident_mb"`
	WrittenMB   float64 `json:"written_mb"`
}

func usageOf(pid string) usage {
	var u usage
	if raw, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil {
		// The name of the program may hold spaces: fields are counted from behind its parenthesis.
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+2:]))
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		u.CPUSeconds = (user + system) / 100
	}
	u.AnonymousMB = fieldOf("/proc/"+pid+"/status", "RssAnon:") / 1e3
	u.ResidentMB = fieldOf("/proc/"+pid+"/status", "VmRSS:") / 1e3
	u.WrittenMB = fieldOf("/proc/"+pid+"/io", "write_bytes:") / 1e6
	return u
}

func fieldOf(path, name string) float64 {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name {
			value, _ := strconv.ParseFloat(words[1], 64)
			return value
		}
	}
	return 0
}
