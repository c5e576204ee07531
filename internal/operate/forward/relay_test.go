package forward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A testConn is a connection to a server on loopback in place of a pod. Its refusal is what a node would say.
type testConn struct {
	*net.TCPConn
	refusal error
}

func (c testConn) Refusal(context.Context) error { return c.refusal }

// A pod is one backend of a test: a server, or what its node says of it.
type pod struct {
	serve   func(*net.TCPConn)
	refusal string // the server gets no connection
	broken  bool   // the tunnel ends with the connection
}

// service starts the pods and a relay in front of them, and returns the address of the relay.
func relayTo(t *testing.T, counts *Counts, pods ...pod) string {
	t.Helper()
	servers := map[string]string{}
	var backends []Backend
	for i, p := range pods {
		name := string(rune('a' + i))
		backends = append(backends, Backend{Pod: api.Name{Namespace: "shop", Name: name}})
		if p.serve == nil {
			continue
		}
		servers[name] = tcpServer(t, p.serve)
	}
	dial := func(ctx context.Context, b Backend) (PodConn, error) {
		p := pods[b.Pod.Name[0]-'a']
		if p.serve == nil {
			return refusedConn{errors.New(p.refusal)}, nil
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", servers[b.Pod.Name])
		if err != nil {
			return nil, err
		}
		conn := testConn{TCPConn: c.(*net.TCPConn)}
		if p.broken {
			conn.refusal = errors.New("the tunnel to the pod has ended")
		}
		return conn, nil
	}
	return tcpServer(t, func(c *net.TCPConn) {
		r := relay{client: c, backends: func() []Backend { return backends }, dial: dial, counts: counts}
		if err := r.run(t.Context()); err != nil {
			counts.Failed.Add(1)
		}
	})
}

// A refusedConn is a connection that the node could not lead into the pod: it takes bytes and gives none.
type refusedConn struct{ why error }

func (refusedConn) Read([]byte) (int, error)        { return 0, io.EOF }
func (refusedConn) Write(p []byte) (int, error)     { return len(p), nil }
func (refusedConn) Close() error                    { return nil }
func (refusedConn) CloseWrite() error               { return nil }
func (c refusedConn) Refusal(context.Context) error { return c.why }

func tcpServer(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().String()
}

// echo answers with a name and all that it was sent.
func echo(name string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		sent, _ := io.ReadAll(c)
		_, _ = c.Write(append([]byte(name+": "), sent...))
	}
}

// ask sends a request, ends its side, and reads the answer.
func ask(t *testing.T, addr string, request []byte) (string, error) {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.Write(request); err != nil {
		return "", err
	}
	_ = c.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(c)
	return string(answer), err
}

const refused = `failed to execute portforward in network namespace "/run/netns/x": failed to connect to localhost:80 inside namespace "x": dial tcp4 127.0.0.1:80: connect: connection refused`

// TestRelay: a connection moves to another pod if no program can have seen its bytes, and else ends with a reset.
func TestRelay(t *testing.T) {
	large := bytes.Repeat([]byte("fairway "), 1<<17)
	half := func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 100))
		_, _ = c.Write([]byte("half an ans"))
	}
	mute := func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 100)) }
	for _, tc := range []struct {
		name          string
		pods          []pod
		request       []byte
		answer        string // empty: the connection is reset
		moved, failed int64
	}{
		{"a pod", []pod{{serve: echo("a")}}, []byte("hello"), "a: hello", 0, 0},
		{"the first refuses", []pod{{refusal: refused}, {serve: echo("b")}}, []byte("hello"), "b: hello", 1, 0},
		{"the first is gone", []pod{{refusal: `pods "a" not found`}, {serve: echo("b")}}, []byte("hello"), "b: hello", 1, 0},
		{"a large request", []pod{{serve: echo("a")}}, large, "a: " + string(large), 0, 0},
		{"an empty answer", []pod{{serve: mute}}, []byte("hello"), "-", 0, 0},
		{"the tunnel ends inside of an answer", []pod{{serve: half, broken: true}, {serve: echo("b")}}, []byte("hello"), "", 0, 1},
		{"the tunnel ends after a request", []pod{{serve: mute, broken: true}, {serve: echo("b")}}, []byte("hello"), "", 0, 1},
		{"the tunnel ends before a request", []pod{{serve: func(*net.TCPConn) {}, broken: true}, {serve: echo("b")}}, nil, "b: ", 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var counts Counts
			got, err := ask(t, relayTo(t, &counts, tc.pods...), tc.request)
			switch {
			case tc.answer == "" && err == nil:
				t.Errorf("the answer was %.40q, and the client cannot see that it is not whole", got)
			case tc.answer != "" && err != nil:
				t.Error(err)
			case tc.answer != "" && got != strings.TrimPrefix(tc.answer, "-"):
				t.Errorf("the answer is %.40q (%d bytes), not %.40q (%d bytes)", got, len(got), tc.answer, len(tc.answer))
			}
			if m := counts.Moved.Load(); m != tc.moved {
				t.Errorf("%d connections moved, not %d", m, tc.moved)
			}
			for deadline := time.Now().Add(10 * time.Second); counts.Failed.Load() != tc.failed && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			if n := counts.Failed.Load(); n != tc.failed {
				t.Errorf("%d connections failed, not %d", n, tc.failed)
			}
		})
	}
}

// TestRelayWaits: a connection that comes while a Service has no endpoint is served by the next one.
func TestRelayWaits(t *testing.T) {
	server := tcpServer(t, echo("late"))
	var asked atomic.Int64
	backends := func() []Backend {
		if asked.Add(1) < 3 {
			return nil
		}
		return []Backend{{}}
	}
	dial := func(context.Context, Backend) (PodConn, error) {
		c, err := net.Dial("tcp", server)
		if err != nil {
			return nil, err
		}
		return testConn{TCPConn: c.(*net.TCPConn)}, nil
	}
	relayed := tcpServer(t, func(c *net.TCPConn) {
		r := relay{client: c, backends: backends, dial: dial, counts: &Counts{}}
		if err := r.run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	large := bytes.Repeat([]byte("x"), 10*kept) // more than is kept while there is no pod
	if got, err := ask(t, relayed, large); err != nil || got != "late: "+string(large) {
		t.Errorf("the answer is %.40q (%d bytes), %v", got, len(got), err)
	}
}
