package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
)

// A frame of the remoting protocol: total length, header length, header, body. The header is JSON.

// requestTemplate is a request whose header is made once; only the number of the request, the
// queue and the time change from one send to the next.
type requestTemplate struct {
	code   int
	flag   int
	fields string // JSON of the fields that do not change, without braces.
	body   []byte
	buffer []byte
}

// encode appends the changing fields and returns the whole frame. The slice is reused.
func (t *requestTemplate) encode(opaque int32, changing string) []byte {
	b := append(t.buffer[:0], 0, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, `{"code":`...)
	b = strconv.AppendInt(b, int64(t.code), 10)
	b = append(b, `,"language":"GO","version":399,"flag":`...)
	b = strconv.AppendInt(b, int64(t.flag), 10)
	b = append(b, `,"serializeTypeCurrentRPC":"JSON","opaque":`...)
	b = strconv.AppendInt(b, int64(opaque), 10)
	b = append(b, `,"extFields":{`...)
	b = append(b, changing...)
	b = append(b, t.fields...)
	b = append(b, "}}"...)
	header := len(b) - 8
	b = append(b, t.body...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	binary.BigEndian.PutUint32(b[4:], uint32(header))
	t.buffer = b
	return b
}

// response is what a load generator needs of an answer: the numbers are cut out of the header
// without parsing JSON as a whole, because the generator must not be what is measured.
type response struct {
	code   int
	opaque int32
	next   int64 // nextBeginOffset of a pull, else -1
	header []byte
	body   []byte
}

type responseReader struct {
	in     *bufio.Reader
	buffer []byte
}

func (r *responseReader) read(answer *response) error {
	var fixed [8]byte
	if _, err := io.ReadFull(r.in, fixed[:]); err != nil {
		return err
	}
	total := int(binary.BigEndian.Uint32(fixed[:])) - 4
	headerSize := int(binary.BigEndian.Uint32(fixed[4:]) & 0xffffff)
	if total < headerSize || total > 64<<20 {
		return fmt.Errorf("frame of %d bytes with a header of %d", total, headerSize)
	}
	if cap(r.buffer) < total {
		r.buffer = make([]byte, total*2)
	}
	data := r.buffer[:total]
	if _, err := io.ReadFull(r.in, data); err != nil {
		return err
	}
	answer.header, answer.body = data[:headerSize], data[headerSize:]
	answer.code = int(numberAfter(answer.header, `"code":`, -1))
	answer.opaque = int32(numberAfter(answer.header, `"opaque":`, -1))
	answer.next = numberAfter(answer.header, `"nextBeginOffset":"`, -1)
	return nil
}

// numberAfter is the integer that follows `key`, or `missing`.
func numberAfter(header []byte, key string, missing int64) int64 {
	at := bytes.Index(header, []byte(key))
	if at < 0 {
		return missing
	}
	at += len(key)
	end := at
	for end < len(header) && (header[end] == '-' || header[end] >= '0' && header[end] <= '9') {
		end++
	}
	value, err := strconv.ParseInt(string(header[at:end]), 10, 64)
	if err != nil {
		return missing
	}
	return value
}

// countRecords walks the records of a pull's body; an error means the bytes are not records.
func countRecords(body []byte) (int64, error) {
	count := int64(0)
	for at := 0; at < len(body); {
		if at+4 > len(body) {
			return 0, fmt.Errorf("%d bytes behind the last record", len(body)-at)
		}
		size := int(binary.BigEndian.Uint32(body[at:]))
		if size < 4 || at+size > len(body) {
			return 0, fmt.Errorf("record of %d bytes at %d of %d", size, at, len(body))
		}
		at += size
		count++
	}
	return count, nil
}
