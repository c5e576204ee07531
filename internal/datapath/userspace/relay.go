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
// Until the endpoint has sent its first byte, the relay keeps the bytes of the client, up to
// replay, so that it can send them to the next endpoint. After that it only copies bytes.
type relay struct {
	client  *net.TCPConn
	buffers *buffers
	bytes   atomic.Uint64
	upDone  chan struct{} // closed when upward has ended; nil: not begun
	// takePipe asks whether there may be a pipe, and givePipe gives it back.
	takePipe func() bool
	givePipe func()

	mu        sync.Mutex
	changed   sync.Cond    // endpoint or over
	endpoint  *net.TCPConn // the present endpoint; nil: none yet
	replayBuf []byte       // all bytes of the client
	committed bool         // said is no longer kept: the endpoint stays
	broken    bool         // a write to the endpoint failed
	eof       bool         // the client has sent all
	ended     bool         // the connection ends
}

func newRelay(client *net.TCPConn, b *buffers) *relay {
	r := &relay{client: client, buffers: b}
	r.changed.L = &r.mu
	return r
}

// replay bounds the bytes that are kept to be sent again.
const replay = 16 << 10

// run relays between the client and c. It returns when the connection has ended, or with
// again set when c has reset before its first byte, and another endpoint may be tried.
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
		_ = r.client.CloseWrite() // a reset shows when reading
	} else {
		r.abort()
	}
	<-r.upDone
	return false
}

// attach makes c the endpoint and sends it the kept bytes. It returns false if the client is
// gone.
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

// detach removes the endpoint if it has reset and another can replace it. Only the first of
// reader and writer gets the error of a reset: the reader sees an ordinary end if the writer
// was first.
func (r *relay) detach(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.committed || r.ended {
		return false
	}
	if !errors.Is(err, unix.ECONNRESET) && (err != nil || !r.broken) {
		r.committed, r.replayBuf = true, nil // the endpoint closed properly without a byte
		return false
	}
	r.endpoint = nil
	return true
}

// commit drops the kept bytes: the endpoint answers.
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

// fail ends a connection that no endpoint takes.
func (r *relay) fail() {
	r.abort()
	if r.upDone != nil {
		<-r.upDone
	}
}

// upward copies the bytes of the client to the endpoint.
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

// opening copies the bytes of the client while they may have to be sent again. It returns
// nil when the endpoint is settled, and io.EOF when the client has sent all before.
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

// sendClient sends b to the endpoint, and keeps it if it may be needed again. An empty b is the end
// of the client's bytes.
func (r *relay) sendClient(b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.committed && len(r.replayBuf)+len(b) > replay {
		// Too much to keep: the endpoint stays, if there is one at the moment.
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

// Small pieces are copied through a buffer. After bulk full buffers in a row, a pipe for
// splice(2) is worth its price; it is kept for chunk bytes.
const (
	bulk  = 4
	chunk = 64 << 20
)

// copyBytes copies from src to dst until the end of src. It calls first when the first byte is
// there.
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

// buffers are shared by all connections: an idle connection has none.
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

// read waits until there are bytes to read, and only then takes a buffer. No bytes and no
// error is the end.
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
