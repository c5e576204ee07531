package server

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// A socket reads and writes a TCP connection with calls that Go's scheduler does not see. The calls never block, because the
// socket does not: the runtime's poller waits. The scheduler would take the processor from each call that lasts 20 µs, which a
// write on a busy machine does, and wake another thread. That cost a tenth of the CPU of a request.
//
// One goroutine may read while another writes.
type socket struct {
	raw           syscall.RawConn
	reading       transfer
	writing       transfer
	read1, write1 func(fd uintptr) (done bool)
}

// A transfer is the state of a Read or a Write.
type transfer struct {
	b   []byte
	n   int
	err error
}

// newSocket returns the socket of a TCP connection, or nil.
func newSocket(c net.Conn) *socket {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socket{raw: raw}
	s.read1, s.write1 = s.tryRead, s.tryWrite
	return s
}

// Read implements io.Reader.
func (s *socket) Read(b []byte) (int, error) {
	r := &s.reading
	r.b, r.n, r.err = b, 0, nil
	err := s.raw.Read(s.read1)
	r.b = nil
	if err != nil {
		return 0, err
	}
	return r.n, r.err
}

func (s *socket) tryRead(fd uintptr) bool {
	s.reading.n, s.reading.err = rawRead(fd, s.reading.b)
	return s.reading.err != errAgain
}

// Write implements io.Writer.
func (s *socket) Write(b []byte) (int, error) {
	w := &s.writing
	w.b, w.n, w.err = b, 0, nil
	err := s.raw.Write(s.write1)
	w.b = nil
	if err != nil {
		return w.n, err
	}
	return w.n, w.err
}

// tryWrite writes until nothing is left or the socket's buffer is full.
func (s *socket) tryWrite(fd uintptr) bool {
	w := &s.writing
	for w.n < len(w.b) {
		n, err := rawWrite(fd, w.b[w.n:])
		if err == errAgain {
			return false
		}
		if err != nil {
			w.err = err
			return true
		}
		w.n += n
	}
	return true
}

// rawRead reads from a socket that does not block.
func rawRead(fd uintptr, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch {
		case errno == syscall.EINTR:
		case errno == syscall.EAGAIN:
			return 0, errAgain
		case errno != 0:
			return 0, os.NewSyscallError("read", errno)
		case n == 0:
			return 0, io.EOF
		default:
			return int(n), nil
		}
	}
}

// rawWrite writes to a socket that does not block.
func rawWrite(fd uintptr, b []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, errAgain
		default:
			return 0, os.NewSyscallError("write", errno)
		}
	}
}
