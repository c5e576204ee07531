package controlplane

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// dialTimeout is the time limit for one target, because a node that is cut off does not answer.
const dialTimeout = 2 * time.Second

// forward copies every connection of an inherited listener to the first target that accepts it. The listener belongs to
// the namespace that made it. The connections to targets belong to the namespace of this process. The user's namespace
// therefore needs no address and no route of the lab.
func forward(listener net.Listener, targets []string) func(context.Context) error {
	return func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { listener.Close() })
		defer stop()
		var open sync.WaitGroup
		defer open.Wait()
		for {
			conn, err := listener.Accept()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("accept: %w", err)
			}
			open.Go(func() { splice(ctx, conn, targets) })
		}
	}
}

func splice(ctx context.Context, in net.Conn, targets []string) {
	defer in.Close()
	var dialer net.Dialer
	if len(targets) > 1 {
		dialer.Timeout = dialTimeout
	}
	var out net.Conn
	for _, target := range targets {
		var err error
		if out, err = dialer.DialContext(ctx, "tcp", target); err == nil {
			break
		}
	}
	if out == nil {
		return // no target listens yet, so the client sees a closed connection and retries
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() { in.Close(); out.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { half(out, in) })
	both.Go(func() { half(in, out) })
	both.Wait()
}

// half copies one direction and then closes the writing side of dst. A peer therefore sees the end of a request before
// its answer, as in kubectl exec with input.
func half(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	if tcp, ok := dst.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}
