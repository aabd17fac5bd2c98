// load puts the same load on any broker that speaks RocketMQ's remoting protocol and prints one
// line of JSON about it. Standard library only.
//
//	load send -addr HOST:PORT -topic T -conns 16 -depth 16 -size 128 -seconds 10 [-rate 5000]
//	load send ... -members 64           batches of 64 messages; -topics 100: T0 to T99 in turn
//	load send ... -properties 'DELAY=1,a={n}'   {n}: the number of the connection
//	load send ... -transaction          half messages, each committed when it is acknowledged
//	load pull ... -sql 'a > 5'          only what the expression lets through is counted
//	load pull -addr HOST:PORT -topic T -queues 4 -batch 32 -seconds 10 [-again]
//	load flow -addr HOST:PORT -topic T -rate 5000 -consumers 1 -seconds 10
//	load echo -addr 127.0.0.1:0
//	load proxy -addr 127.0.0.1:0 -target HOST:PORT -delay 2 [-reports FILE]
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
	members     int
	topics      int
	consumers   int
	first       int
	seconds     float64
	rate        float64
	wait        bool
	again       bool
	pids        string
	properties  string
	transaction bool
	sql         string
	target      string
	delayMs     float64
	reports     string
	replies     string
	notes       *noteFile
}

func main() {
	if len(os.Args) < 2 || !strings.Contains(" send pull flow echo proxy ", " "+os.Args[1]+" ") {
		fmt.Fprintln(os.Stderr, "usage: load send|pull|flow|echo|proxy [flags]; load send -h lists them")
		os.Exit(2)
	}
	mode, o := os.Args[1], parse(os.Args[1], os.Args[2:])
	if mode == "echo" {
		fmt.Fprintln(os.Stderr, echo(o.address))
		os.Exit(1)
	}
	if mode == "proxy" {
		fmt.Fprintln(os.Stderr, proxy(o))
		os.Exit(1)
	}
	o.notes = &noteFile{}
	if err := o.notes.open(o.replies); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	report, failed := measure(mode, o)
	o.notes.flush()
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
	flags.IntVar(&o.members, "members", 0, "messages in one batch; 0: no batches (send)")
	flags.IntVar(&o.topics, "topics", 1, "topics, named by -topic and a number (send)")
	flags.IntVar(&o.first, "first", 0, "number of the first topic (send)")
	flags.IntVar(&o.consumers, "consumers", 1, "readers of the whole topic (flow)")
	flags.Float64Var(&o.seconds, "seconds", 10, "how long")
	flags.Float64Var(&o.rate, "rate", 0, "sends per second by the clock, all connections together; 0: as fast as answered")
	flags.BoolVar(&o.wait, "wait", true, "the WAIT property: wait for store and replica")
	flags.BoolVar(&o.again, "again", false, "start over at the end of a queue (pull)")
	flags.StringVar(&o.properties, "properties", "", "more properties: name=value,name=value (send)")
	flags.BoolVar(&o.transaction, "transaction", false, "half messages that are committed (send)")
	flags.StringVar(&o.sql, "sql", "", "SQL92 expression (pull)")
	flags.StringVar(&o.pids, "pid", "", "processes to watch: name=pid,name=pid")
	flags.StringVar(&o.target, "target", "", "where to connect to (proxy)")
	flags.Float64Var(&o.delayMs, "delay", 0, "milliseconds each way (proxy)")
	flags.StringVar(&o.reports, "reports", "", "file for the slave's acknowledgements (proxy)")
	flags.StringVar(&o.replies, "replies", "", "file for time and log offset of every answer (send)")
	flags.Parse(arguments)
	return o
}

var points = map[string]float64{"p50": .5, "p99": .99, "p999": .999, "max": 1}

func measure(mode string, o *options) (map[string]any, bool) {
	workers := o.connections
	if mode == "pull" {
		workers = o.queues
	}
	var total, received totals
	readers, err := subscribe(mode, o, &received)
	if err != nil {
		return map[string]any{"mode": mode, "first_error": err.Error()}, true
	}
	watched := watch(o.pids)
	before := usages(watched)
	begin := time.Now()
	deadline := begin.Add(time.Duration(o.seconds * float64(time.Second)))
	failures := make(chan error, workers+1)
	var running sync.WaitGroup
	for i := 0; i < workers; i++ {
		running.Add(1)
		go func(number int) {
			defer running.Done()
			var err error
			if mode != "pull" {
				err = (&sender{options: o, number: number, totals: &total, isStamped: mode == "flow"}).run(deadline)
			} else {
				err = pullQueue(o, number, deadline, &total)
			}
			if err != nil {
				failures <- err
			}
		}(i)
	}
	running.Wait()
	unread := total.messages.Load()*int64(o.consumers) - received.messages.Load()
	if err := readers.stop(total.messages.Load()); err != nil {
		failures <- err
	}
	elapsed := time.Since(begin).Seconds()
	messages := float64(total.messages.Load())
	report := map[string]any{
		"mode": mode, "messages": messages, "seconds": elapsed, "msg_s": messages / elapsed,
		"mb_s": float64(total.bytes.Load()) / elapsed / 1e6, "codes": total.all.codes,
		"latency_ms": total.percentiles(points),
		"processes":  difference(watched, before, usages(watched)), "errors": len(failures),
	}
	if mode == "flow" {
		report["received"] = received.messages.Load()
		report["received_ms"] = received.percentiles(points)
		report["unread"] = unread // When the last send was answered: what readers are behind by.
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
