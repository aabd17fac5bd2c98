package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// proxy stands between a slave and its master's HA port: it delays each direction and, with
// -reports, writes down when the slave acknowledged what: pairs of int64, nanoseconds and offset.

var twinMagic = []byte("\xffTwinlog")

func proxy(o *options) error {
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	os.Stdout.Sync()
	notes := &noteFile{}
	if err := notes.open(o.reports); err != nil {
		return err
	}
	delay := time.Duration(o.delayMs * float64(time.Millisecond))
	for {
		near, err := listener.Accept()
		if err != nil {
			return err
		}
		far, err := net.Dial("tcp", o.target)
		if err != nil {
			near.Close()
			continue
		}
		if err := relayBoth(near, far, delay, &reportParser{notes: notes}); err != nil {
			return err
		}
	}
}

// reportParser finds acknowledgements: reports of 8 bytes, or ACK frames of the twin dialect.
type reportParser struct {
	notes  *noteFile
	rest   []byte
	isTwin bool
	isSure bool
}

func (p *reportParser) take(data []byte) {
	if p.notes.out == nil {
		return
	}
	p.rest = append(p.rest, data...)
	if !p.isSure && len(p.rest) >= 8 {
		p.isSure, p.isTwin = true, bytes.Equal(p.rest[:8], twinMagic)
		if p.isTwin {
			p.rest = p.rest[8:]
		}
	}
	now := time.Now().UnixNano()
	for p.isSure && !p.isTwin && len(p.rest) >= 8 {
		p.notes.add(now, int64(binary.BigEndian.Uint64(p.rest)))
		p.rest = p.rest[8:]
	}
	for p.isTwin && len(p.rest) >= 16 {
		size := 16 + int(binary.BigEndian.Uint32(p.rest[4:]))
		if len(p.rest) < size {
			break
		}
		if binary.BigEndian.Uint16(p.rest) == 32 {
			p.notes.add(now, int64(binary.BigEndian.Uint64(p.rest[16:])))
		}
		p.rest = p.rest[size:]
	}
}

// noteFile takes pairs of numbers; without a name it takes nothing.
type noteFile struct {
	lock sync.Mutex
	out  *bufio.Writer
}

func (n *noteFile) open(name string) error {
	if name == "" {
		return nil
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	n.out = bufio.NewWriterSize(file, 1<<16)
	go func() {
		for range time.Tick(200 * time.Millisecond) {
			n.flush()
		}
	}()
	return nil
}

func (n *noteFile) add(a, b int64) {
	if n.out == nil {
		return
	}
	var pair [16]byte
	binary.BigEndian.PutUint64(pair[:], uint64(a))
	binary.BigEndian.PutUint64(pair[8:], uint64(b))
	n.lock.Lock()
	defer n.lock.Unlock()
	n.out.Write(pair[:])
}

func (n *noteFile) flush() {
	if n.out == nil {
		return
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	n.out.Flush()
}

// offsetOf is the place in the log that an answer's message id names: its last 16 hexadecimal digits.
func offsetOf(header []byte) int64 {
	const key = `"msgId":"`
	at := bytes.Index(header, []byte(key))
	if at < 0 || len(header) < at+len(key)+32 {
		return -1
	}
	var offset int64
	digits := header[at+len(key)+16 : at+len(key)+32]
	if _, err := fmt.Sscanf(string(digits), "%X", &offset); err != nil {
		return -1
	}
	return offset
}
