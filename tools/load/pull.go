package main

import (
	"bufio"
	"fmt"
	"net"
	"time"
)

const (
	codeFound       = 0
	codeNotFound    = 19
	codeRetry       = 20 // Nothing of what was looked at is wanted: go on behind it.
	codeOffsetMoved = 21
)

// pullQueue reads one queue from its beginning to its end, or until the deadline; with `again` it
// starts over at the end, so that a small backlog lasts for a whole measurement.
func pullQueue(o *options, queue int, deadline time.Time, totals *totals) error {
	connection, err := net.DialTimeout("tcp", o.address, 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(deadline.Add(20 * time.Second)); err != nil {
		return err
	}
	reader := responseReader{in: bufio.NewReaderSize(connection, 1<<20)}
	request := &requestTemplate{
		code: 11,
		fields: fmt.Sprintf(`"consumerGroup":"load","topic":%q,"queueId":"%d","maxMsgNums":"%d","sysFlag":"4","commitOffset":"0","suspendTimeoutMillis":"0","subVersion":"0",%s`,
			o.topic, queue, o.batch, subscription(o.sql)),
	}
	var seen samples
	var answer response
	for offset := int64(0); time.Now().Before(deadline); {
		begin := time.Now()
		if _, err := connection.Write(request.encode(1, fmt.Sprintf(`"queueOffset":"%d",`, offset))); err != nil {
			return err
		}
		if err := reader.read(&answer); err != nil {
			return err
		}
		seen.add(time.Since(begin).Nanoseconds(), answer.code)
		if answer.code == codeNotFound || answer.code == codeOffsetMoved {
			if !o.again {
				break
			}
			offset = 0
			continue
		}
		if answer.code == codeRetry && o.sql != "" {
			offset = answer.next
			continue
		}
		if answer.code != codeFound {
			return fmt.Errorf("pull answered: %s", answer.header)
		}
		count, err := countRecords(answer.body)
		if err != nil {
			return err
		}
		offset = answer.next
		totals.messages.Add(count)
		totals.bytes.Add(int64(len(answer.body)))
	}
	totals.merge(&seen)
	return nil
}

// subscription is the fields that say what is wanted: everything, or what `sql` lets through.
func subscription(sql string) string {
	if sql == "" {
		return `"subscription":"*","expressionType":"TAG"`
	}
	return fmt.Sprintf(`"subscription":%q,"expressionType":"SQL92"`, sql)
}
