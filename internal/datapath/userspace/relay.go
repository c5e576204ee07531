package userspace

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A relay copies bytes between a client and an endpoint.
//
//	client ──→ upward, a goroutine of its own ─────────→ endpoint ─┐ resets before its
//	client ←── run, in the connection's goroutine ←───── endpoint  │ first byte
//	                 ↑                                             │
//	                 └── again, with the next endpoint ←───────────┘
//
// Until the endpoint has sent its first byte, the relay keeps the client's bytes, up to replay, to send them to the next
// endpoint. After that it only copies bytes.
type relay struct {
	client  *net.TCPConn
	buffers *buffers
	bytes   atomic.Uint64
	upDone  chan struct{} // closed when upward has ended; nil before upward begins
	// takePipe reports whether the relay may have a pipe. givePipe gives it back.
	takePipe func() bool
	givePipe func()

	mu        sync.Mutex
	changed   sync.Cond    // endpoint or ended has changed
	endpoint  *net.TCPConn // the present endpoint, or nil
	replayBuf []byte       // all bytes of the client so far
	committed bool         // the endpoint stays, and replayBuf is dropped
	broken    bool         // a write to the endpoint failed
	eof       bool         // the client has closed its side
	ended     bool         // the connection ends
}

func newRelay(client *net.TCPConn, b *buffers) *relay {
	r := &relay{client: client, buffers: b}
	r.changed.L = &r.mu
	return r
}

// replay bounds replayBuf.
const replay = 16 << 10

// run relays between the client and c. It returns when the connection has ended. again is true if c has reset before
// its first byte, so that another endpoint may be tried.
func (r *relay) run(c *net.TCPConn, spawn func(func())) (again bool) {
	if !r.attach(c) {
		return false
	}
	if r.upDone == nil {
		r.upDone = make(chan struct{})
		spawn(r.upward)
	}
	err := r.copyBytes(r.client, c, r.commit)
	if r.detach(err) {
		return true
	}
	if err == nil {
		_ = r.client.CloseWrite() // if the client has reset, the next read says so
	} else {
		r.abort()
	}
	<-r.upDone
	return false
}

// attach makes c the endpoint, and sends it the kept bytes. It returns false if the connection has ended.
func (r *relay) attach(c *net.TCPConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.endpoint, r.broken = c, false
	if len(r.replayBuf) > 0 {
		_, err := c.Write(r.replayBuf)
		r.broken = err != nil
	}
	if r.eof {
		_ = c.CloseWrite()
	}
	r.changed.Broadcast()
	return true
}

// detach removes the endpoint if it has reset and another endpoint may replace it. The kernel reports a reset only
// once, to the reader or to the writer. If the writer was first, the reader sees an ordinary end.
func (r *relay) detach(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.committed || r.ended {
		return false
	}
	if !errors.Is(err, unix.ECONNRESET) && (err != nil || !r.broken) {
		r.committed, r.replayBuf = true, nil // the endpoint closed in order, without a byte
		return false
	}
	r.endpoint = nil
	return true
}

// commit drops the kept bytes, because the endpoint has answered.
func (r *relay) commit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.committed, r.replayBuf = true, nil
}

// abort resets both ends.
func (r *relay) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	reset(r.client)
	if r.endpoint != nil {
		reset(r.endpoint)
	}
	r.changed.Broadcast()
}

// fail ends a connection without an endpoint.
func (r *relay) fail() {
	r.abort()
	if r.upDone != nil {
		<-r.upDone
	}
}

// upward copies the client's bytes to the endpoint.
func (r *relay) upward() {
	defer close(r.upDone)
	err := r.opening()
	r.mu.Lock()
	to := r.endpoint
	r.mu.Unlock()
	if err == nil {
		err = r.copyBytes(to, r.client, nil)
	}
	if err == nil {
		r.mu.Lock()
		r.eof = true
		r.mu.Unlock()
		_ = to.CloseWrite()
		return
	}
	if !errors.Is(err, io.EOF) {
		r.abort()
	}
}

// opening copies the client's bytes while they may be needed for another endpoint. It returns nil when the endpoint is
// committed, and io.EOF if the client closed its side before.
func (r *relay) opening() error {
	raw, err := r.client.SyscallConn()
	if err != nil {
		return err
	}
	for {
		r.mu.Lock()
		settled := r.committed
		r.mu.Unlock()
		if settled {
			return nil
		}
		b, n, err := r.buffers.read(raw)
		if err != nil {
			return err
		}
		err = r.sendClient(b[:n])
		r.buffers.put(b)
		if err != nil {
			return err
		}
	}
}

// sendClient sends b to the endpoint, and keeps b if another endpoint may need it. An empty b is the end of the
// client's bytes.
func (r *relay) sendClient(b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.committed && len(r.replayBuf)+len(b) > replay {
		// Too many bytes to keep: commit to the present endpoint, or to the next one.
		for r.endpoint == nil && !r.ended {
			r.changed.Wait()
		}
		r.committed, r.replayBuf = true, nil
	}
	if r.ended {
		return net.ErrClosed
	}
	if !r.committed {
		r.replayBuf = append(r.replayBuf, b...)
	}
	if len(b) == 0 {
		r.eof = true
		if r.endpoint != nil {
			_ = r.endpoint.CloseWrite()
		}
		return io.EOF
	}
	r.bytes.Add(uint64(len(b)))
	if r.endpoint != nil {
		if _, err := r.endpoint.Write(b); err != nil {
			if r.committed {
				return err
			}
			r.broken = true
		}
	}
	return nil
}

// Small pieces are copied through a buffer. After bulk full buffers in a row, splice(2) through a pipe is faster. The
// relay keeps the pipe for chunk bytes.
const (
	bulk  = 4
	chunk = 64 << 20
)

// copyBytes copies from src to dst until the end of src. It calls first, which may be nil, when the first byte arrives.
func (r *relay) copyBytes(dst, src *net.TCPConn, first func()) error {
	raw, err := src.SyscallConn()
	if err != nil {
		return err
	}
	for full := 0; ; {
		b, n, err := r.buffers.read(raw)
		if err != nil {
			return err
		}
		if first != nil && n > 0 {
			first()
			first = nil
		}
		if n > 0 {
			_, err = dst.Write(b[:n])
		}
		r.buffers.put(b)
		if err != nil || n == 0 {
			return err
		}
		r.bytes.Add(uint64(n))
		if full++; n < len(b) {
			full = 0
		}
		if full == bulk && !r.takePipe() {
			full = 0
		}
		if full == bulk {
			n, err := dst.ReadFrom(&io.LimitedReader{R: src, N: chunk})
			r.givePipe()
			r.bytes.Add(uint64(n))
			if err != nil || n < chunk {
				return err
			}
			full = 0
		}
	}
}

// buffers are shared by all connections. An idle connection has no buffer.
type buffers struct{ pool sync.Pool }

// bufferSize is the size of the largest datagram.
const bufferSize = 64 << 10

func (b *buffers) get() *[bufferSize]byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p
	}
	return new([bufferSize]byte)
}

func (b *buffers) put(p *[bufferSize]byte) { b.pool.Put(p) }

// read waits until there are bytes to read, and only then takes a buffer. n is 0 without an error at the end of the
// stream.
func (b *buffers) read(raw syscall.RawConn) (p *[bufferSize]byte, n int, err error) {
	e := raw.Read(func(fd uintptr) bool {
		p = b.get()
		for {
			if n, err = unix.Read(int(fd), p[:]); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			b.put(p)
			p, n = nil, 0
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if e != nil && p != nil {
		b.put(p)
		p = nil
	}
	return p, n, errors.Join(err, e)
}
