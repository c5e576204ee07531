package listener

import (
	"context"
	"net"
)

// Serve calls f with each connection of l, one after the other, until ctx ends, which is no error. Serve then closes l. f
// must close the connections.
func Serve(ctx context.Context, l net.Listener, f func(net.Conn)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case err != nil:
			return err
		}
		f(c)
	}
}
