package main

import (
	"encoding/binary"
	"fmt"
)

// A batch is the body of request 320: its members one after the other, each with a unique id as
// every client gives it one. Only the ids change from one batch to the next.
type batch struct {
	bytes   []byte
	ids     []int // Where the changing half of each id is.
	counter uint64
}

const (
	idName = "UNIQ_KEY\x01"
	idEnd  = "\x02"
	digits = "0123456789ABCDEF"
)

func newBatch(members int, body []byte, number int) *batch {
	b := &batch{}
	prefix := fmt.Sprintf("7F0000010000%04X", number&0xffff)
	properties := idName + prefix + "0000000000000000" + idEnd
	size := 20 + len(body) + 2 + len(properties)
	for i := 0; i < members; i++ {
		head := make([]byte, 20)
		binary.BigEndian.PutUint32(head, uint32(size))
		binary.BigEndian.PutUint32(head[16:], uint32(len(body)))
		b.bytes = append(b.bytes, head...)
		b.bytes = append(b.bytes, body...)
		b.bytes = append(b.bytes, byte(len(properties)>>8), byte(len(properties)))
		b.ids = append(b.ids, len(b.bytes)+len(idName)+len(prefix))
		b.bytes = append(b.bytes, properties...)
	}
	return b
}

func (b *batch) renew() {
	for _, at := range b.ids {
		b.counter++
		value := b.counter
		for i := at + 15; i >= at; i-- {
			b.bytes[i] = digits[value&15]
			value >>= 4
		}
	}
}
