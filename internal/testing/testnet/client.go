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

// An Outcome is the result of a request, as the client sees it.
type Outcome int

// The outcomes. Refused is an answer: a TCP reset or an ICMP port unreachable. Dropped means no answer within the
// client's patience.
const (
	Failed Outcome = iota // any other result, see Answer.Err
	Answered
	Refused
	Dropped
)

// String returns "failed", "answered", "refused" or "dropped".
func (o Outcome) String() string {
	return [...]string{"failed", "answered", "refused", "dropped"}[o]
}

// An Answer is the result of one request. By, At and Seen are set if the Outcome is Answered.
type Answer struct {
	Outcome Outcome
	By      string         // the name of the host that answered
	At      netip.AddrPort // the server's own address
	Seen    netip.AddrPort // the client's address, as the server saw it
	Err     error          // the error of the socket, unless Answered
}

// String returns, for example, "answered by pod-a 10.244.1.5:8080, which saw 198.51.100.10:4711", "refused", "dropped"
// or "failed: …".
func (a Answer) String() string {
	switch a.Outcome {
	case Answered:
		return fmt.Sprintf("answered by %s %v, which saw %v", a.By, a.At, a.Seen)
	case Failed:
		return fmt.Sprintf("failed: %v", a.Err)
	}
	return a.Outcome.String()
}

// Patience is how long a client waits by default if silence is a possible result. In a test's network an answer takes
// less than a tenth of it.
const Patience = 300 * time.Millisecond

// Ask sends one request from the namespace and waits for an answer. The network is "tcp", "udp" or "sctp".
func (n *Namespace) Ask(network string, to netip.AddrPort, patience time.Duration) Answer {
	c, err := n.Dial(network, to, patience)
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	return c.Ask(patience)
}

// A Conn is a client's connection: a TCP connection, a UDP socket with one peer, or a raw socket for SCTP handshakes.
type Conn struct {
	conn    net.Conn
	in      *bufio.Reader
	tcp     bool
	greeted bool // the server's first line was read
}

// Dial connects from the namespace. For UDP and SCTP it sends nothing.
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

// UDP and SCTP clients take the ports from firstPort to lastPort in turn. The range is below NodePorts and below the
// ports that the kernel chooses.
const (
	firstPort = 12000
	lastPort  = 29999
	ports     = lastPort - firstPort + 1
)

// dialUDP opens a socket on a port that no UDP client of the namespace had before, or that 18,000 clients before it did
// not have. A port that the kernel chooses equals an earlier client's once in a hundred tests. Then conntrack sends the
// request to the earlier client's endpoint.
func (n *Namespace) dialUDP(network string, to netip.AddrPort) (net.Conn, error) {
	var conn net.Conn
	err := n.onFreePort(func(port uint16) (err error) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{Port: int(port)}}
		conn, err = d.Dial(network, to.String())
		return err
	})
	return conn, err
}

// nextPort returns the port that was not used for the longest time.
func (n *Namespace) nextPort() uint16 { return uint16(firstPort + int(n.clients.Add(1)-1)%ports) }

// onFreePort calls bind with the next ports until one is free.
func (n *Namespace) onFreePort(bind func(port uint16) error) error {
	for range ports {
		if err := bind(n.nextPort()); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("%s has %d UDP clients: there are no more ports", n.Name, ports)
}

// KeepAsking sends TCP requests until stop is called. stop returns the number of requests, and the results that were
// not answers. Each request may take 20 s.
func (n *Namespace) KeepAsking(to netip.AddrPort) (stop func() (asked int, failed []Answer)) {
	end, ended := make(chan struct{}), make(chan struct{})
	asked, failed := 0, []Answer(nil)
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond): // a client has a limited number of ports
			}
			asked++
			if a := n.Ask("tcp", to, 20*time.Second); a.By == "" {
				failed = append(failed, a)
			}
		}
	}()
	return func() (int, []Answer) { close(end); <-ended; return asked, failed }
}

// Ask sends a request and returns the answer. It may be called repeatedly.
func (c *Conn) Ask(patience time.Duration) Answer {
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return failure(err)
	}
	if !c.tcp || c.greeted {
		// If a local rule stops its packet, a UDP sender gets EPERM at once, for drop and for reject. For reject there is
		// also an ICMP error to read.
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

// Wait waits until the other end closes or sends. The error is io.EOF if the other end closed in order, another error
// if the connection broke, and nil if it sent bytes.
func (c *Conn) Wait(patience time.Duration) error {
	return c.read(patience, func() error {
		_, err := c.in.ReadByte()
		return err
	})
}

// End closes the client's side of a TCP connection, and waits until the other end has closed its side.
func (c *Conn) End(patience time.Duration) error {
	if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if err := c.Wait(patience); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the other end did not end: %w", err)
	}
	return nil
}

// LocalAddr returns the client's own address.
func (c *Conn) LocalAddr() netip.AddrPort {
	return netip.MustParseAddrPort(c.conn.LocalAddr().String())
}

// Close ends the connection. It ends TCP by a reset, so that thousands of connections leave no TIME_WAIT.
func (c *Conn) Close() {
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		reset(tcp)
	}
	_ = c.conn.Close()
}

// reset ends a connection even if another process has a copy of its socket. A program that another test starts has a
// copy of every socket until it executes. Closing our copy would not end the connection, and the port would stay in
// use.
func reset(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // the socket is closed
	}
	_ = raw.Control(func(fd uintptr) {
		to := unix.RawSockaddr{Family: unix.AF_UNSPEC} // connect(2) dissolves the association
		_, _, _ = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to))
	})
}

// failure returns the Answer for an error of a socket.
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
