package cluster_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/fabric"
)

// A load is a set of connections from namespaces of a lab to a server in one of them. Some connections stay open and
// repeat requests, and the others are new for each request.
type load struct {
	u        *undo
	fabric   fabric.Fabric
	listener net.Listener
	stop     chan struct{}
	running  sync.WaitGroup

	mu                         sync.Mutex
	answered, opened, resolved int
	resolves                   bool
	failed                     []string
}

const (
	patience = 30 * time.Second // a busy machine may be slow
	pulse    = 20 * time.Millisecond
)

// startLoad starts a server at an address of a node, and sends 100 requests a second to each address of its Service, from
// a namespace. The first request to each address must succeed.
func (u *undo) startLoad(server, at string, ways map[string]string) *load {
	u.Helper()
	l := &load{u: u, fabric: fabric.Fabric{Dir: filepath.Join(u.lab.dir(), "net")}, stop: make(chan struct{})}
	err := l.in(server, func() (err error) {
		l.listener, err = net.Listen("tcp", at)
		return err
	})
	if err != nil {
		u.Fatal(err)
	}
	l.running.Go(l.serve)
	for to, from := range ways {
		for end := time.Now().Add(time.Minute); l.once(from, to, time.Second) != nil; time.Sleep(pulse) {
			if time.Now().After(end) {
				u.Fatalf("%s never answers", to)
			}
		}
		conn, err := l.dial(from, to, patience)
		if err != nil {
			u.Fatal(err)
		}
		l.running.Go(func() {
			defer conn.Close()
			l.loop(&l.answered, func() error { return ask(conn) })
		})
		l.running.Go(func() { l.loop(&l.opened, func() error { return l.once(from, to, patience) }) })
	}
	return l
}

func (l *load) in(name string, do func() error) error { return visit(l.fabric, name, do) }

// home is this process's network namespace.
var home = sync.OnceValues(func() (*os.File, error) { return os.Open("/proc/self/ns/net") })

// visit runs do in a namespace of a lab and then leaves it. "down" kills processes with a main thread in one of the
// lab's namespaces.
func visit(f fabric.Fabric, name string, do func() error) error {
	h, err := home()
	if err != nil {
		return err
	}
	return f.Do(name, func() error { return errors.Join(do(), unix.Setns(int(h.Fd()), unix.CLONE_NEWNET)) })
}

// resolve also sends questions to the cluster's DNS, from a node. As in libc, each has two attempts. With 50 questions a
// second, a port is soon used again, and conntrack may still send its packets to a server that has just ended.
func (l *load) resolve(from string) {
	l.resolves = true
	l.running.Go(func() {
		l.loop(&l.resolved, func() error {
			if l.lookup(from) == nil {
				return nil
			}
			return l.lookup(from)
		})
	})
}

// lookup asks for the Service kubernetes.
func (l *load) lookup(from string) error {
	var conn *net.UDPConn
	err := l.in(from, func() (err error) {
		server := netip.AddrPortFrom(fabric.Plan{Family: fabric.IPv4}.DNS()[0], 53)
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName("kubernetes.default.svc.cluster.local."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	packed, err := query.Pack()
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(packed); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	if err != nil {
		return fmt.Errorf("ask DNS: %w", err)
	}
	var answer dnsmessage.Message
	if err := answer.Unpack(buf[:n]); err != nil || answer.RCode != dnsmessage.RCodeSuccess || len(answer.Answers) != 1 {
		return fmt.Errorf("DNS answers %v, %v", answer.GoString(), err)
	}
	return nil
}

// serve echoes until the listener is closed.
func (l *load) serve() {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.running.Go(func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		})
	}
}

func (l *load) dial(from, to string, limit time.Duration) (c net.Conn, err error) {
	err = l.in(from, func() (err error) {
		c, err = net.DialTimeout("tcp", to, limit)
		return err
	})
	return c, err
}

func (l *load) once(from, to string, limit time.Duration) error {
	c, err := l.dial(from, to, limit)
	if err != nil {
		return err
	}
	defer c.Close()
	return ask(c)
}

func ask(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// loop calls do until the load ends or an error occurs.
func (l *load) loop(count *int, do func() error) {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		err := do()
		l.mu.Lock()
		*count++
		if err != nil {
			l.failed = append(l.failed, time.Now().Format("05.000 ")+err.Error())
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// checkpoint fails the test for the errors since the last checkpoint.
func (l *load) checkpoint(what string) {
	l.u.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.u.Logf("%s: %d answers on old connections, %d new connections, %d names, failed: %d", what, l.answered, l.opened, l.resolved, len(l.failed))
	if len(l.failed) > 0 || l.answered == 0 || l.opened == 0 || l.resolves && l.resolved == 0 {
		l.u.Errorf("%s: %v", what, l.failed)
	}
	l.answered, l.opened, l.resolved, l.failed = 0, 0, 0, nil
}

func (l *load) end() {
	close(l.stop)
	l.listener.Close()
	l.running.Wait()
}
