package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Readers of a topic that is being written: each has a connection to every queue and waits there
// with a long poll. The latency of a message is from when its send was due to its arrival here.
type readers struct {
	running   sync.WaitGroup
	stopping  atomic.Bool
	consumers int
	open      []net.Conn
	failures  chan error
	totals    *totals
}

const (
	bodyAt        = 88 // In a record whose hosts are IPv4.
	flagsLongPoll = 6  // Subscription in the request, and wait when there is nothing.
	settleMax     = 5 * time.Second
)

// subscribe returns when every reader knows the end of its queue, so that nothing sent is missed.
func subscribe(mode string, o *options, received *totals) (*readers, error) {
	r := &readers{consumers: o.consumers, totals: received}
	if mode != "flow" {
		return r, nil
	}
	r.failures = make(chan error, o.consumers*o.queues)
	for consumer := 0; consumer < o.consumers; consumer++ {
		for queue := 0; queue < o.queues; queue++ {
			connection, err := net.DialTimeout("tcp", o.address, 5*time.Second)
			if err != nil {
				return nil, err
			}
			r.open = append(r.open, connection)
			reader := &responseReader{in: bufio.NewReaderSize(connection, 1<<17)}
			offset, err := endOfQueue(connection, reader, o.topic, queue)
			if err != nil {
				return nil, err
			}
			r.running.Add(1)
			go r.read(connection, reader, o, consumer, queue, offset)
		}
	}
	return r, nil
}

func endOfQueue(connection net.Conn, reader *responseReader, topic string, queue int) (int64, error) {
	request := &requestTemplate{code: 30, fields: fmt.Sprintf(`"topic":%q,"queueId":"%d"`, topic, queue)}
	if _, err := connection.Write(request.encode(1, "")); err != nil {
		return 0, err
	}
	var answer response
	if err := reader.read(&answer); err != nil {
		return 0, err
	}
	if answer.code != 0 {
		return 0, fmt.Errorf("end of queue %d of %s: %s", queue, topic, answer.header)
	}
	return numberAfter(answer.header, `"offset":"`, 0), nil
}

func (r *readers) read(connection net.Conn, reader *responseReader, o *options, consumer, queue int, offset int64) {
	defer r.running.Done()
	request := &requestTemplate{
		code: 11,
		fields: fmt.Sprintf(`"consumerGroup":"load%d","topic":%q,"queueId":"%d","maxMsgNums":"%d","sysFlag":"%d","commitOffset":"0","suspendTimeoutMillis":"15000","subscription":"*","subVersion":"0","expressionType":"TAG"`,
			consumer, o.topic, queue, o.batch, flagsLongPoll),
	}
	var seen samples
	var answer response
	for {
		_, err := connection.Write(request.encode(1, fmt.Sprintf(`"queueOffset":"%d",`, offset)))
		if err == nil {
			err = reader.read(&answer)
		}
		if r.stopping.Load() {
			break
		}
		if err != nil {
			r.failures <- err
			break
		}
		if answer.code != codeFound {
			continue // The poll ended with nothing.
		}
		now := time.Now().UnixNano()
		count, err := countRecords(answer.body)
		if err != nil {
			r.failures <- err
			break
		}
		for at := 0; at < len(answer.body); at += int(binary.BigEndian.Uint32(answer.body[at:])) {
			seen.add(now-int64(binary.BigEndian.Uint64(answer.body[at+bodyAt:])), 0)
		}
		r.totals.messages.Add(count)
		offset = answer.next
	}
	r.totals.merge(&seen)
}

// stop waits until everything that was sent has arrived, then ends the readers.
func (r *readers) stop(sent int64) error {
	wanted := sent * int64(r.consumers)
	for end := time.Now().Add(settleMax); len(r.open) > 0 && r.totals.messages.Load() < wanted && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	r.stopping.Store(true)
	for _, connection := range r.open {
		connection.Close()
	}
	r.running.Wait()
	select {
	case err := <-r.failures:
		return err
	default:
	}
	if got := r.totals.messages.Load(); len(r.open) > 0 && got < wanted {
		return fmt.Errorf("%d of %d messages arrived", got, wanted)
	}
	return nil
}
