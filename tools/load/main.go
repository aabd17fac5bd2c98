// load puts the same load on any broker that speaks RocketMQ's remoting protocol and prints one
// line of JSON about it. Standard library only.
//
//	load send -addr HOST:PORT -topic T -conns 16 -depth 16 -size 128 -seconds 10 [-rate 5000]
//	load pull -addr HOST:PORT -topic T -queues 4 -batch 32 -seconds 10 [-again]
//	load echo -addr 127.0.0.1:0
//
// With -pid (a comma list of name=pid or pid) the CPU seconds, memory and bytes written to disk of
// those processes during the run are reported, each by its name.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

type options struct {
	address     string
	topic       string
	connections int
	depth       int
	size        int
	queues      int
	batch       int
	seconds     float64
	rate        float64
	wait        bool
	again       bool
	pids        string
}

func main() {
	if len(os.Args) < 2 || !strings.Contains(" send pull echo ", " "+os.Args[1]+" ") {
		fmt.Fprintln(os.Stderr, "usage: load send|pull|echo [flags]; load send -h lists them")
		os.Exit(2)
	}
	mode, o := os.Args[1], parse(os.Args[1], os.Args[2:])
	if mode == "echo" {
		fmt.Fprintln(os.Stderr, echo(o.address))
		os.Exit(1)
	}
	report, failed := measure(mode, o)
	json.NewEncoder(os.Stdout).Encode(report)
	if failed {
		os.Exit(1)
	}
}

func parse(mode string, arguments []string) *options {
	o := &options{}
	flags := flag.NewFlagSet(mode, flag.ExitOnError)
	flags.StringVar(&o.address, "addr", "127.0.0.1:10911", "address of the broker, or to listen on")
	flags.StringVar(&o.topic, "topic", "load", "topic")
	flags.IntVar(&o.connections, "conns", 16, "connections (send)")
	flags.IntVar(&o.depth, "depth", 1, "sends in flight on each connection")
	flags.IntVar(&o.size, "size", 1024, "bytes of a body")
	flags.IntVar(&o.queues, "queues", 4, "queues of the topic")
	flags.IntVar(&o.batch, "batch", 32, "messages asked for in one pull")
	flags.Float64Var(&o.seconds, "seconds", 10, "how long")
	flags.Float64Var(&o.rate, "rate", 0, "sends a second by the clock, all connections together; 0: as fast as answered")
	flags.BoolVar(&o.wait, "wait", true, "the WAIT property: wait for store and replica")
	flags.BoolVar(&o.again, "again", false, "start over at the end of a queue (pull)")
	flags.StringVar(&o.pids, "pid", "", "processes to watch: name=pid,name=pid")
	flags.Parse(arguments)
	return o
}

func measure(mode string, o *options) (map[string]any, bool) {
	workers := o.connections
	if mode == "pull" {
		workers = o.queues
	}
	watched := watch(o.pids)
	before := usages(watched)
	var total totals
	begin := time.Now()
	deadline := begin.Add(time.Duration(o.seconds * float64(time.Second)))
	failures := make(chan error, workers)
	var running sync.WaitGroup
	for i := 0; i < workers; i++ {
		running.Add(1)
		go func(number int) {
			defer running.Done()
			var err error
			if mode == "send" {
				err = (&sender{options: o, number: number, totals: &total}).run(deadline)
			} else {
				err = pullQueue(o, number, deadline, &total)
			}
			if err != nil {
				failures <- err
			}
		}(i)
	}
	running.Wait()
	elapsed := time.Since(begin).Seconds()
	messages := float64(total.messages.Load())
	report := map[string]any{
		"mode": mode, "messages": messages, "seconds": elapsed, "msg_s": messages / elapsed,
		"mb_s": float64(total.bytes.Load()) / elapsed / 1e6, "codes": total.all.codes,
		"latency_ms": total.percentiles(map[string]float64{"p50": .5, "p99": .99, "p999": .999, "max": 1}),
		"processes":  difference(watched, before, usages(watched)), "errors": len(failures),
	}
	if len(failures) > 0 {
		report["first_error"] = (<-failures).Error()
		return report, true
	}
	return report, false
}

func watch(list string) map[string]string {
	watched := map[string]string{}
	for _, item := range strings.Split(list, ",") {
		if name, pid, found := strings.Cut(strings.TrimSpace(item), "="); found {
			watched[name] = pid
		} else if name != "" {
			watched[name] = name
		}
	}
	return watched
}

func usages(watched map[string]string) map[string]usage {
	found := map[string]usage{}
	for name, pid := range watched {
		found[name] = usageOf(pid)
	}
	return found
}

// difference: CPU and bytes written during the run, memory at its end.
func difference(watched map[string]string, before, after map[string]usage) map[string]usage {
	result := map[string]usage{}
	for name := range watched {
		u := after[name]
		u.CPUSeconds -= before[name].CPUSeconds
		u.WrittenMB -= before[name].WrittenMB
		result[name] = u
	}
	return result
}
