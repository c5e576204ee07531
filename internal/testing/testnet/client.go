package testnet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An Outcome is what a client experienced.
type Outcome int

// The outcomes. Refused is an answer (a TCP reset or an ICMP port unreachable),
// Dropped is silence until the client's patience ended.
const (
	Failed Outcome = iota // anything else, see Answer.Err
	Answered
	Refused
	Dropped
)

// String returns "failed", "answered", "refused" or "dropped".
func (o Outcome) String() string {
	return [...]string{"failed", "answered", "refused", "dropped"}[o]
}

// An Answer is what became of one request. By, At and Seen are set if it was
// Answered.
type Answer struct {
	Outcome Outcome
	By      string         // the name of the host that answered
	At      netip.AddrPort // the address it was asked at
	Seen    netip.AddrPort // the client's address, as it saw it
	Err     error          // the socket's, if not Answered
}

// String returns "answered by pod-a 10.244.1.5:8080, which saw 198.51.100.10:4711",
// "refused", "dropped" or "failed: …".
func (a Answer) String() string {
	switch a.Outcome {
	case Answered:
		return fmt.Sprintf("answered by %s %v, which saw %v", a.By, a.At, a.Seen)
	case Failed:
		return fmt.Sprintf("failed: %v", a.Err)
	}
	return a.Outcome.String()
}

// Patience is how long a client waits by default where silence is a possible answer.
// Every answer within a test's network comes in less than a tenth of it.
const Patience = 300 * time.Millisecond

// Ask sends one request from the namespace and waits for an answer. The network is
// "tcp", "udp" or "sctp".
func (n *Namespace) Ask(network string, to netip.AddrPort, patience time.Duration) Answer {
	c, err := n.Dial(network, to, patience)
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	return c.Ask(patience)
}

// A Conn is a client's connection: a TCP connection, a UDP socket with one peer, or a raw one for
// handshakes of SCTP.
type Conn struct {
	conn    net.Conn
	in      *bufio.Reader
	tcp     bool
	greeted bool // the server's first line was read
}

// Dial connects from the namespace. A "connection" of UDP or SCTP sends nothing yet.
func (n *Namespace) Dial(network string, to netip.AddrPort, patience time.Duration) (*Conn, error) {
	var conn net.Conn
	err := n.Do(func() (err error) {
		switch network {
		case "tcp":
			conn, err = dialTCP(to, patience)
		case "sctp":
			conn, err = n.dialSCTP(to)
		default:
			conn, err = n.dialUDP(network, to)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Conn{conn: conn, in: bufio.NewReader(conn), tcp: network == "tcp"}, nil
}

// firstPort to lastPort are the ports that clients of UDP and SCTP take one after the other; below
// those that are NodePorts or that the kernel draws.
const (
	firstPort = 12000
	lastPort  = 29999
	ports     = lastPort - firstPort + 1
)

// dialUDP opens a socket on a port that no UDP client of the namespace had before, or not
// for the 18,000 before it. One that the kernel draws is, once in a hundred tests, that of
// an earlier client, and conntrack then sends what it asks where the earlier one was sent.
func (n *Namespace) dialUDP(network string, to netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	err := n.onFreePort(func(port uint16) (err error) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{Port: int(port)}}
		conn, err = d.Dial(network, to.String())
		return err
	})
	return conn, err
}

// nextPort is one that no client had for the longest time.
func (n *Namespace) nextPort() uint16 { return uint16(firstPort + int(n.clients.Add(1)-1)%ports) }

// onFreePort gives bind the next port, and the next as long as it is in use.
func (n *Namespace) onFreePort(bind func(port uint16) error) error {
	for range ports {
		if err := bind(n.nextPort()); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("%s has %d UDP clients: there are no more ports", n.Name, ports)
}

// KeepAsking asks by TCP, again and again, until the function that it returns is called, which returns
// how often, and the answers that were none. Each may take 20 s.
func (n *Namespace) KeepAsking(to netip.AddrPort) (stop func() (asked int, failed []Answer)) {
	end, ended := make(chan struct{}), make(chan struct{})
	asked, failed := 0, []Answer(nil)
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond): // between two: the client has only so many ports
			}
			asked++
			if a := n.Ask("tcp", to, 20*time.Second); a.By == "" {
				failed = append(failed, a)
			}
		}
	}()
	return func() (int, []Answer) { close(end); <-ended; return asked, failed }
}

// Ask asks for the name of the other end. It may be called repeatedly.
func (c *Conn) Ask(patience time.Duration) Answer {
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return failure(err)
	}
	if !c.tcp || c.greeted {
		// A UDP sender whose packet a local rule stopped gets EPERM at once, whether
		// the rule rejects or drops. If it rejects, an ICMP error waits to be read.
		if _, err := c.conn.Write([]byte("who?\n")); err != nil && !errors.Is(err, unix.EPERM) {
			return failure(err)
		}
	}
	line := ""
	err := c.read(patience, func() error {
		more, err := c.in.ReadString('\n')
		line += more
		return err
	})
	if err != nil {
		return failure(err)
	}
	c.greeted = true
	return parseAnswer(line)
}

// Wait waits for what the other end does without being asked. The error is io.EOF if it
// ends the connection in order, and another error otherwise. Nil means that it sends something.
func (c *Conn) Wait(patience time.Duration) error {
	return c.read(patience, func() error {
		_, err := c.in.ReadByte()
		return err
	})
}

// End closes the client's direction of a TCP connection, and waits until the other end has closed its own.
func (c *Conn) End(patience time.Duration) error {
	if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if err := c.Wait(patience); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the other end did not end: %w", err)
	}
	return nil
}

// LocalAddr is the client's own address.
func (c *Conn) LocalAddr() netip.AddrPort {
	return netip.MustParseAddrPort(c.conn.LocalAddr().String())
}

// Close ends the connection; one of TCP by a reset, so that thousands leave no TIME_WAIT.
func (c *Conn) Close() {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		reset(tcp)
	}
	_ = c.conn.Close()
}

// reset ends a connection whoever else has its socket: a program that another test starts has a copy of each until it has
// begun, and to close ours would end nothing before. The port would be taken until then.
func reset(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		to := unix.RawSockaddr{Family: unix.AF_UNSPEC} // connect(2): dissolves the association
		_, _, _ = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to))
	})
}

// failure sorts an error of a socket.
func failure(err error) Answer {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Answer{Outcome: Refused, Err: err}
	case errors.As(err, &timeout) && timeout.Timeout():
		return Answer{Outcome: Dropped, Err: err}
	}
	return Answer{Outcome: Failed, Err: err}
}

func parseAnswer(line string) Answer {
	f := strings.Fields(line)
	if len(f) != 4 || f[2] != "saw" {
		return Answer{Err: fmt.Errorf("answer %q makes no sense", line)}
	}
	at, err := netip.ParseAddrPort(f[1])
	if err != nil {
		return Answer{Err: fmt.Errorf("read answer: %w", err)}
	}
	seen, err := netip.ParseAddrPort(f[3])
	if err != nil {
		return Answer{Err: fmt.Errorf("read answer: %w", err)}
	}
	return Answer{Outcome: Answered, By: f[0], At: at, Seen: seen}
}
