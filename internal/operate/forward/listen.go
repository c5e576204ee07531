package forward

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
)

// A listener serves a Target at an address of this machine.
type listener struct {
	Counts
	key      key
	at       netip.AddrPort
	socket   *net.TCPListener
	backends atomic.Pointer[[]Backend]
	turn     atomic.Uint64
	failure  atomic.Pointer[string] // of the last connection that failed
	conns    *sync.WaitGroup        // of all listeners
}

// serve accepts connections until the socket is closed.
func (l *listener) serve(ctx context.Context, dial Dial, failed func(*listener, error)) {
	for {
		c, err := l.socket.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !sleep(ctx, again) {
				return
			}
			continue // too many open files
		}
		l.Open.Add(1)
		l.conns.Go(func() {
			defer l.Open.Add(-1)
			r := relay{client: c, backends: func() []Backend { return *l.backends.Load() }, turn: l.turn.Add(1) - 1, dial: dial, counts: &l.Counts}
			if err := r.run(ctx); err != nil && ctx.Err() == nil {
				l.Failed.Add(1)
				text := err.Error()
				l.failure.Store(&text)
				failed(l, err)
			}
		})
	}
}

// close ends the listener. Its connections go on.
func (l *listener) close() { _ = l.socket.Close() }

// loopbacks is the range of the Services' addresses. Linux answers for all of 127.0.0.0/8, without configuration.
var loopbacks = netip.MustParsePrefix("127.64.0.0/10")

// tries is how many addresses are tried for a Service. More fail only if a program has the port on all addresses.
const tries = 8

// candidate returns the n-th address for a name. It depends on the name only, so a Service has the same address at the
// next start, and two processes seldom want one.
func candidate(name string, n int) netip.Addr {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s#%d", name, n)
	sum := h.Sum32()
	base := loopbacks.Addr().As4()
	host := sum%(1<<22-2) + 1
	return netip.AddrFrom4([4]byte{base[0], base[1] | byte(host>>16), byte(host >> 8), byte(host)})
}

// listen opens a socket on loopback.
func listen(at netip.AddrPort) (*net.TCPListener, error) {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	switch {
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on port %d: %w [run as root, or use --ports, which takes ports from 1024 on]", at.Port(), syscall.EACCES)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	return l, nil
}

// inUse reports whether another socket has the address and port.
func inUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
