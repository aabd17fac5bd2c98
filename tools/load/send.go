package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A sender is one connection with `depth` sends in flight. In an open loop (rate > 0) sends leave
// by the clock and a latency counts from the moment a send was due, so that a broker that stalls
// cannot hide the sends it kept from leaving (coordinated omission).

type sender struct {
	options  *options
	number   int
	totals   *totals
	due      []int64 // By slot: when the send left, or in an open loop should have left.
	slots    chan int32
	failures chan error
	inFlight atomic.Int64
	samples  samples
	batch    *batch // With -members.
	// In the body's first bytes is when the send was due: a reader tells the latency end to end.
	isStamped bool
}

func (s *sender) run(deadline time.Time) error {
	connection, err := net.DialTimeout("tcp", s.options.address, 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(deadline.Add(20 * time.Second)); err != nil {
		return err
	}
	depth := s.options.depth
	s.due = make([]int64, depth)
	s.slots = make(chan int32, depth)
	s.failures = make(chan error, 1)
	for slot := 0; slot < depth; slot++ {
		s.slots <- int32(slot)
	}
	go s.receive(connection)
	if err := s.sendUntil(connection, deadline); err != nil {
		return err
	}
	return s.drain()
}

func (s *sender) template() *requestTemplate {
	o := s.options
	keys := "KEYS\x01k\x02"
	if o.members > 0 { // Keys are the members' own: clients give a batch none.
		keys = ""
	}
	properties, _ := json.Marshal(fmt.Sprintf("%sWAIT\x01%v%s", keys, o.wait, s.moreProperties()))
	systemFlag := 0
	if o.transaction {
		systemFlag = flagPrepared
	}
	template := &requestTemplate{code: 310, body: bodyOf(o.size, s.number)}
	if o.members > 0 {
		template.code = 320
		s.batch = newBatch(o.members, template.body, s.number)
		template.body = s.batch.bytes
	}
	template.fields = fmt.Sprintf(`"a":"load","c":"TBW102","d":"%d","f":"%d","h":"0","i":%s,"j":"0","k":"false","m":"%v"`,
		o.queues, systemFlag, properties, o.members > 0)
	if o.topics <= 1 {
		template.fields += fmt.Sprintf(`,"b":%q`, o.topic)
	}
	return template
}

// moreProperties is what -properties and -transaction add to the property string.
func (s *sender) moreProperties() string {
	o, text := s.options, ""
	if o.transaction {
		text = "\x02TRAN_MSG\x01true\x02PGROUP\x01load"
	}
	if o.properties != "" {
		for _, pair := range strings.Split(o.properties, ",") {
			name, value, _ := strings.Cut(pair, "=")
			text += "\x02" + name + "\x01" + strings.ReplaceAll(value, "{n}", strconv.Itoa(s.number))
		}
	}
	return text
}

func bodyOf(size, number int) []byte {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('a' + (i+number)%26)
	}
	return body
}

// changing is what differs from one request to the next: queue, time and with -topics the topic.
func (s *sender) changing(sent int, due time.Time) string {
	o := s.options
	if o.topics <= 1 {
		return fmt.Sprintf(`"e":"%d","g":"%d",`, sent%o.queues, due.UnixMilli())
	}
	return fmt.Sprintf(`"b":"%s%d","e":"%d","g":"%d",`, o.topic, sent%o.topics, sent/o.topics%o.queues, due.UnixMilli())
}

func (s *sender) sendUntil(connection net.Conn, deadline time.Time) error {
	out := bufio.NewWriterSize(connection, 1<<16)
	request := s.template()
	sent := s.options.first + s.number
	step := 1
	if s.options.topics > 1 {
		step = s.options.connections // Together the connections walk over all topics.
	}
	var period time.Duration
	if s.options.rate > 0 {
		period = time.Duration(float64(time.Second) * float64(s.options.connections) / s.options.rate)
	}
	next := time.Now().Add(period * time.Duration(s.number) / time.Duration(s.options.connections))
	for time.Now().Before(deadline) {
		due := time.Now()
		if period > 0 {
			if wait := time.Until(next); wait > 0 {
				if err := out.Flush(); err != nil {
					return err
				}
				time.Sleep(wait)
			}
			due = next
			next = next.Add(period)
		}
		slot, err := s.freeSlot(out)
		if err != nil {
			return err
		}
		if period == 0 {
			due = time.Now()
		}
		s.due[slot] = due.UnixNano()
		s.inFlight.Add(1)
		changing := s.changing(sent, due)
		sent += step
		if s.batch != nil {
			s.batch.renew()
		} else if s.isStamped {
			binary.BigEndian.PutUint64(request.body, uint64(due.UnixNano()))
		}
		if _, err := out.Write(request.encode(slot, changing)); err != nil {
			return err
		}
	}
	return out.Flush()
}

// freeSlot waits for room; what is buffered leaves first, or the answers could never come.
func (s *sender) freeSlot(out *bufio.Writer) (int32, error) {
	select {
	case slot := <-s.slots:
		return slot, nil
	default:
	}
	if err := out.Flush(); err != nil {
		return 0, err
	}
	select {
	case slot := <-s.slots:
		return slot, nil
	case err := <-s.failures:
		return 0, err
	}
}

func (s *sender) receive(connection net.Conn) {
	reader := responseReader{in: bufio.NewReaderSize(connection, 1<<16)}
	var answer response
	ending := newEnding(connection)
	for {
		if err := reader.read(&answer); err != nil {
			s.failures <- err
			return
		}
		if s.options.transaction {
			if err := ending.commit(&answer, reader.in.Buffered() == 0); err != nil {
				s.failures <- err
				return
			}
		}
		if answer.opaque < 0 || int(answer.opaque) >= len(s.due) {
			s.failures <- fmt.Errorf("answer to a request that was never sent: %s", answer.header)
			return
		}
		s.samples.add(time.Now().UnixNano()-s.due[answer.opaque], answer.code)
		if s.options.replies != "" {
			s.options.notes.add(time.Now().UnixNano(), offsetOf(answer.header))
		}
		if answer.code == 0 {
			count := int64(max(1, s.options.members))
			s.totals.messages.Add(count)
			s.totals.bytes.Add(count * int64(s.options.size))
		}
		s.inFlight.Add(-1)
		s.slots <- answer.opaque
	}
}

// drain waits for the last answers, so that the samples are complete and no longer written to.
func (s *sender) drain() error {
	for taken := 0; taken < s.options.depth; taken++ {
		select {
		case <-s.slots:
		case err := <-s.failures:
			return err
		}
	}
	s.totals.merge(&s.samples)
	return nil
}
