package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

type listenerKey struct {
	proto api.Proto
	port  uint16
}

// A listener is a port at which the server listens.
type listener struct {
	close func()
}

// listen opens the ports that are new, and closes the ports that are gone. Connections stay. s.mu is held.
func (s *Server) listen(ports []gateway.Port) error {
	if s.stopped {
		return nil
	}
	wanted := map[listenerKey]bool{}
	var failed []error
	for _, p := range ports {
		key := listenerKey{p.Proto, p.Number}
		wanted[key] = true
		if s.listeners[key] != nil {
			continue
		}
		l, err := s.open(key)
		if err != nil {
			failed = append(failed, fmt.Errorf("listen on port %d/%v: %w [another program may have the port]", p.Number, p.Proto, err))
			continue
		}
		s.listeners[key] = l
	}
	for key, l := range s.listeners {
		if !wanted[key] {
			l.close()
			delete(s.listeners, key)
		}
	}
	s.metrics.listenErrors.Set(float64(len(failed)))
	return errors.Join(failed...)
}

func (s *Server) open(key listenerKey) (*listener, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	host := ""
	if s.Address.IsValid() {
		host = s.Address.String()
	}
	at := net.JoinHostPort(host, strconv.Itoa(int(key.port)))
	var lc net.ListenConfig
	if key.proto == api.UDP {
		return s.openUDP(ctx, at, key.port)
	}
	l, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		s.accept(l, key.port)
	}()
	return &listener{close: func() { _ = l.Close() }}, nil
}

// accept serves the connections of a listener until it is closed.
func (s *Server) accept(l net.Listener, port uint16) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files: wait, because the error would come again at once
			s.Log.Error("cannot accept a connection", "port", port, "error", err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		peer := addrOf(c.RemoteAddr())
		k := &conn{Conn: c, accepted: c, port: port, peer: peer, client: peer.Addr()}
		if !s.conns.add(k, s.MaxConns) {
			s.metrics.refused.WithLabelValues("connections").Inc()
			_ = c.Close()
			continue
		}
		s.work.Add(1) // accept itself is counted, so Wait cannot have ended
		go func() {
			defer s.work.Done()
			defer s.conns.remove(k)
			s.serve(k)
		}()
	}
}

// addrOf returns the address of a TCP or UDP peer.
func addrOf(a net.Addr) netip.AddrPort {
	var at netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		at = a.AddrPort()
	case *net.UDPAddr:
		at = a.AddrPort()
	}
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}
