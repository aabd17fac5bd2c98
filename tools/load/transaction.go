package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
)

const (
	flagPrepared       = 4
	flagCommit         = 8
	codeEndTransaction = 37
	oneway             = 2
)

// An ending commits half messages. The request is one-way, as RocketMQ's clients send it; those
// for answers that arrived together leave together.
type ending struct {
	out     *bufio.Writer
	request requestTemplate
}

func newEnding(connection net.Conn) *ending {
	return &ending{
		out: bufio.NewWriterSize(connection, 1<<16),
		request: requestTemplate{
			code: codeEndTransaction, flag: oneway,
			fields: fmt.Sprintf(`"producerGroup":"load","commitOrRollback":"%d","fromTransactionCheck":"false"`, flagCommit),
		},
	}
}

// commit ends the transaction of an acknowledged half message; isLast: no other answer waits.
func (e *ending) commit(answer *response, isLast bool) error {
	if answer.code == 0 {
		id := textAfter(answer.header, `"msgId":"`)
		if len(id) < 16 {
			return fmt.Errorf("no message id in %s", answer.header)
		}
		physical, err := strconv.ParseInt(id[len(id)-16:], 16, 64)
		if err != nil {
			return err
		}
		offset := numberAfter(answer.header, `"queueOffset":"`, -1)
		changing := fmt.Sprintf(`"tranStateTableOffset":"%d","commitLogOffset":"%d","msgId":"%s","transactionId":"%s",`,
			offset, physical, id, id)
		if _, err := e.out.Write(e.request.encode(0, changing)); err != nil {
			return err
		}
	}
	if isLast {
		return e.out.Flush()
	}
	return nil
}

// textAfter is the text between `key` and the next quotation mark.
func textAfter(header []byte, key string) string {
	_, rest, found := bytes.Cut(header, []byte(key))
	if !found {
		return ""
	}
	text, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(text)
}
