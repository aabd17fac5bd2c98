package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
)

// echo answers every send with the smallest success there is and stores nothing: what the load
// generator reaches against it is the generator's own ceiling.
func echo(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	os.Stdout.Sync()
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go echoConnection(connection)
	}
}

func echoConnection(connection net.Conn) {
	defer connection.Close()
	in := bufio.NewReaderSize(connection, 1<<16)
	out := bufio.NewWriterSize(connection, 1<<16)
	var fixed [8]byte
	var buffer []byte
	for {
		if in.Buffered() == 0 {
			if out.Flush() != nil {
				return
			}
		}
		if _, err := io.ReadFull(in, fixed[:]); err != nil {
			return
		}
		total := int(binary.BigEndian.Uint32(fixed[:])) - 4
		if cap(buffer) < total {
			buffer = make([]byte, total*2)
		}
		data := buffer[:total]
		if _, err := io.ReadFull(in, data); err != nil {
			return
		}
		header := data[:binary.BigEndian.Uint32(fixed[4:])&0xffffff]
		opaque := numberAfter(header, `"opaque":`, 0)
		answer := fmt.Sprintf(`{"code":0,"flag":1,"language":"GO","opaque":%d,"version":399,"extFields":{"queueId":"0","queueOffset":"0","msgId":"0"}}`, opaque)
		binary.BigEndian.PutUint32(fixed[:], uint32(4+len(answer)))
		binary.BigEndian.PutUint32(fixed[4:], uint32(len(answer)))
		out.Write(fixed[:])
		out.WriteString(answer)
	}
}
