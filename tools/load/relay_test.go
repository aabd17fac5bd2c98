package main

import (
	"bytes"
	"io"
	"math/rand"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

const testDelay = 3 * time.Millisecond

// ends are two connections with a relay between them.
func ends(t *testing.T) (near, far net.Conn) {
	t.Helper()
	relayNear, near := connected(t)
	relayFar, far := connected(t)
	if err := relayBoth(relayNear, relayFar, testDelay, &reportParser{notes: &noteFile{}}); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func connected(t *testing.T) (one, other net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if one, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if other, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { one.Close(); other.Close() })
	other.SetDeadline(time.Now().Add(20 * time.Second))
	return one, other
}

func TestAPieceComesAfterTheDelay(t *testing.T) {
	near, far := ends(t)
	answer := make([]byte, 5)
	for round := 0; round < 20; round++ {
		began := time.Now()
		near.Write([]byte("hello"))
		if _, err := io.ReadFull(far, answer); err != nil || string(answer) != "hello" {
			t.Fatal(answer, err)
		}
		far.Write([]byte("there"))
		if _, err := io.ReadFull(near, answer); err != nil || string(answer) != "there" {
			t.Fatal(answer, err)
		}
		if took := time.Since(began); took < 2*testDelay {
			t.Fatalf("both ways took %v", took)
		}
	}
}

func TestManyBytesComeInOrderBothWaysAtOnce(t *testing.T) {
	near, far := ends(t)
	near.(*net.TCPConn).SetReadBuffer(1 << 14) // Writes are blocked now and then.
	data := make([]byte, 40<<20)
	rand.New(rand.NewSource(7)).Read(data)
	var done sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		way := way
		done.Add(2)
		go func() {
			defer done.Done()
			way[0].Write(data)
		}()
		go func() {
			defer done.Done()
			got := make([]byte, len(data))
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("other bytes, %v", err)
			}
		}()
	}
	done.Wait()
}

func TestWhatWasSentBeforeTheEndComes(t *testing.T) {
	near, far := ends(t)
	near.Write([]byte("last words"))
	near.Close()
	if all, err := io.ReadAll(far); err != nil || string(all) != "last words" {
		t.Fatalf("%q, %v", all, err)
	}
}

func TestAnEndOfEitherEndsBothAndGivesBackTheSockets(t *testing.T) {
	before := openDescriptors(t)
	for round := 0; round < 4; round++ {
		near, far := ends(t)
		first, second := near, far
		if round%2 == 1 {
			first, second = far, near
		}
		first.Close()
		if _, err := second.Read(make([]byte, 1)); err == nil {
			t.Fatal("the other connection is still open")
		}
		second.Close()
	}
	for limit := time.Now().Add(10 * time.Second); openDescriptors(t) > before; {
		if time.Now().After(limit) {
			t.Fatalf("%d descriptors, %d before", openDescriptors(t), before)
		}
		time.Sleep(time.Millisecond)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
