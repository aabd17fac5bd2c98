package main

import (
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// A relay carries the bytes of one direction, each piece `delay` after it came. It is one thread that
// sleeps in ppoll until a socket or the next piece is due: a piece is handed to nobody on its way, and
// buffers are used again. What the relay costs would be taken from the brokers, and what it adds to
// the delay would be counted as theirs.

const (
	pieceSize     = 256 << 10
	piecesMost    = 512 // On their way: 128 MiB, as much as 2 ms hold at 64 GB/s.
	timerSlack    = 29  // PR_SET_TIMERSLACK
	pollIn        = 1
	pollOut       = 4
	endOfPeer     = 8 | 16 | 32 // POLLERR, POLLHUP, POLLNVAL
	slackNanosecs = 1           // The kernel's own would add 50 us to each delay.
)

type pollEntry struct {
	descriptor int32
	events     int16
	found      int16
}

type piece struct {
	due    time.Time
	buffer []byte // All of it, to be used again.
	rest   []byte // What is not written yet.
}

type relay struct {
	from, to  int
	delay     time.Duration
	reports   *reportParser
	waiting   []piece
	free      [][]byte
	isBlocked bool // The receiver takes no more now.
	isEnded   bool // The sender has closed.
}

// relayBoth starts both directions. One that ends shuts its receiver down, so that the other one ends
// as well; the descriptors stay open until both have ended, so that no other connection gets them.
func relayBoth(near, far net.Conn, delay time.Duration, reports *reportParser) error {
	files := make([]*os.File, 2)
	for i, connection := range []net.Conn{near, far} {
		file, err := connection.(*net.TCPConn).File()
		if err != nil {
			return err
		}
		connection.Close() // The file is a copy.
		files[i] = file
	}
	a, b := int(files[0].Fd()), int(files[1].Fd())
	done := make(chan struct{}, 2)
	for _, r := range []*relay{
		{from: a, to: b, delay: delay, reports: reports},
		{from: b, to: a, delay: delay},
	} {
		if err := syscall.SetNonblock(r.from, true); err != nil {
			return err
		}
		go r.run(done)
	}
	go func() {
		<-done
		<-done
		files[0].Close()
		files[1].Close()
	}()
	return nil
}

func (r *relay) run(done chan<- struct{}) {
	runtime.LockOSThread() // Its sleep is the kernel's, and blocks no other goroutine.
	syscall.RawSyscall(syscall.SYS_PRCTL, timerSlack, slackNanosecs, 0)
	for !r.isEnded || len(r.waiting) > 0 {
		if !r.wait() || !r.read() || !r.write() {
			break
		}
	}
	if !r.isEnded {
		syscall.Shutdown(r.from, syscall.SHUT_RDWR)
	}
	syscall.Shutdown(r.to, syscall.SHUT_RDWR)
	done <- struct{}{}
}

// wait ends when there is something to read, room to write, or a piece is due.
func (r *relay) wait() bool {
	entries := [2]pollEntry{{descriptor: -1}, {descriptor: int32(r.to)}}
	if !r.isEnded && len(r.waiting) < piecesMost {
		entries[0] = pollEntry{descriptor: int32(r.from), events: pollIn}
	}
	var limit *syscall.Timespec
	if r.isBlocked {
		entries[1].events = pollOut
	} else if len(r.waiting) > 0 {
		rest := syscall.NsecToTimespec(max(0, time.Until(r.waiting[0].due).Nanoseconds()))
		limit = &rest
	}
	_, _, fault := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&entries[0])), 2,
		uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	if entries[1].found&endOfPeer != 0 {
		return false
	}
	r.isBlocked = r.isBlocked && entries[1].found&pollOut == 0
	return fault == 0 || fault == syscall.EINTR
}

func (r *relay) read() bool {
	if r.isEnded || len(r.waiting) >= piecesMost {
		return true
	}
	buffer := r.take()
	size, err := syscall.Read(r.from, buffer)
	if err == syscall.EAGAIN || err == syscall.EINTR {
		r.free = append(r.free, buffer)
		return true
	}
	if err != nil {
		return false
	}
	if size == 0 {
		r.isEnded = true
		return true
	}
	if r.reports != nil {
		r.reports.take(buffer[:size])
	}
	r.waiting = append(r.waiting, piece{time.Now().Add(r.delay), buffer, buffer[:size]})
	return true
}

// take gives the buffer that was used last: its memory is in the cache, and is the process's already.
func (r *relay) take() []byte {
	last := len(r.free) - 1
	if last < 0 {
		return make([]byte, pieceSize)
	}
	buffer := r.free[last]
	r.free = r.free[:last]
	return buffer
}

func (r *relay) write() bool {
	now := time.Now()
	for len(r.waiting) > 0 && !r.isBlocked {
		first := &r.waiting[0]
		if first.due.After(now) {
			break
		}
		size, err := syscall.Write(r.to, first.rest)
		if err != nil && err != syscall.EAGAIN && err != syscall.EINTR {
			return false
		}
		first.rest = first.rest[max(0, size):]
		r.isBlocked = err == syscall.EAGAIN
		if len(first.rest) == 0 {
			r.free = append(r.free, first.buffer)
			r.waiting = r.waiting[1:]
		}
	}
	return true
}
