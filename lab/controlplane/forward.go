package controlplane

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// forward copies every connection of the inherited listener to kube-apiserver.
// The listener belongs to the namespace it was made in, the connections it
// dials to the one of this process: so nothing of the lab needs an address, or
// a route, in the namespace of the user.
func (c Config) forward(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.Forward.Close() })
	defer stop()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := c.Forward.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		open.Go(func() { c.splice(ctx, conn) })
	}
}

func (c Config) splice(ctx context.Context, in net.Conn) {
	defer in.Close()
	var dialer net.Dialer
	out, err := dialer.DialContext(ctx, "tcp", c.hostPort())
	if err != nil {
		return // not listening yet: the client sees a closed connection and tries again
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() { in.Close(); out.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { half(out, in) })
	both.Go(func() { half(in, out) })
	both.Wait()
}

// half copies one direction and passes on its end, so that a request that
// ends before its answer (kubectl exec with input) is understood as such.
func half(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	if tcp, ok := dst.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}
