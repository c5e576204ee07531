package testnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
)

// A server answers every line and every datagram with its name, its address, and the client's address:
//
//	pod-a 10.244.1.5:8080 saw 198.51.100.10:41234
//
// A TCP client gets the line at once, and again for each line that it sends.
type server struct {
	name  string
	close func() error
	done  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil after the server has ended
}

// Serve answers on an address of the namespace until the test ends or stop is called. stop also cuts the connections.
// The network is "tcp", "udp" or "sctp".
func (n *Namespace) Serve(network string, at netip.AddrPort) (stop func()) {
	n.t.Helper()
	s := &server{name: n.Name, conns: map[net.Conn]struct{}{}}
	err := n.Do(func() error {
		switch network {
		case "tcp":
			return s.serveTCP(at)
		case "udp":
			return s.serveUDP(at)
		case "sctp":
			return n.serveSCTP(s, at)
		}
		return fmt.Errorf("network %q is not tcp, udp or sctp", network)
	})
	if err != nil {
		n.t.Fatalf("testnet: serve %s %v at %s: %v", network, at, n.Name, err)
	}
	stop = sync.OnceFunc(s.stop)
	n.t.Cleanup(stop)
	return stop
}

func (s *server) serveTCP(at netip.AddrPort) error {
	var c net.ListenConfig
	l, err := c.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return err
	}
	s.close = l.Close
	s.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if s.add(conn) {
				s.done.Go(func() { s.serveConn(conn) })
			}
		}
	})
	return nil
}

// serveConn serves one TCP connection until the client closes it.
func (s *server) serveConn(conn net.Conn) {
	defer s.remove(conn)
	in := bufio.NewScanner(conn)
	for {
		if _, err := io.WriteString(conn, s.answerLine(conn.LocalAddr(), conn.RemoteAddr())); err != nil {
			return
		}
		if !in.Scan() {
			return
		}
	}
}

func (s *server) serveUDP(at netip.AddrPort) error {
	var c net.ListenConfig
	pc, err := c.ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		return err
	}
	s.answerPackets(pc, func(_ []byte, from net.Addr) []byte { return []byte(s.answerLine(at, from)) })
	return nil
}

// answerLine returns the server's answer.
func (s *server) answerLine(at, client fmt.Stringer) string {
	return fmt.Sprintf("%s %v saw %v\n", s.name, at, client)
}

// answerPackets answers each packet of a socket with the result of reply, unless the result is nil.
func (s *server) answerPackets(pc net.PacketConn, reply func(packet []byte, from net.Addr) []byte) {
	s.close = pc.Close
	s.done.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // an ICMP error for an earlier answer
				continue
			}
			if text := reply(buf[:n], from); text != nil {
				_, _ = pc.WriteTo(text, from)
			}
		}
	})
}

func (s *server) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		_ = c.Close()
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *server) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	_ = c.Close()
}

func (s *server) stop() {
	_ = s.close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.done.Wait()
}
