package layer2

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

const (
	downloadSize = 300_000
	localPort    = 8081 // each node leads it to its own pod
	clusterPort  = 8082 // each node leads it to the next node's pod, with its own address
)

// TestErrorsByRouters: behind the router is a link with a smaller MTU, and all ICMP errors for an address by BGP go to one
// node. A download by way of any node ends, because the errors reach the node that has the connection.
func TestErrorsByRouters(t *testing.T) {
	l := withPods(newLAN(t, 3))
	l.world.Routed = true
	l.tell(0, 1, 2)
	for _, a := range vips {
		for errors := range l.nodes {
			l.lead(a, errors) // waits until the node can pass on
			l.leadErrors(a, errors)
			for by := range l.nodes {
				l.lead(a, by)
				for _, port := range []uint16{localPort, clusterPort} {
					d := l.begin(a, port)
					d.ends(fmt.Sprintf("port %d: by way of node %d, errors to node %d", port, by+1, errors+1))
				}
			}
		}
	}
}

// TestErrorsByLayer2: an address of layer 2 moves while a connection is open. Its download still ends, although the ICMP
// errors of a router go to the new owner.
func TestErrorsByLayer2(t *testing.T) {
	l := withPods(newLAN(t, 2))
	for _, a := range vips {
		best := l.best(a)
		l.until(a, best)
		all := []*download{l.begin(a, localPort), l.begin(a, clusterPort)}
		l.world.Nodes[best].Excluded = "it is drained"
		l.tell(0, 1)
		l.owner(a, best)
		for _, d := range all {
			d.ends(fmt.Sprintf("%v moved from node %d", a, best+1))
		}
		l.world.Nodes[best].Excluded = ""
		l.tell(0, 1)
	}
}

// A narrowLAN is a lan with a pod on each node, and a link to the client that has a smaller MTU.
type narrowLAN struct {
	*lan
	pods []*testnet.Host
}

// withPods gives each node a pod with downloads, and narrows the client's link.
func withPods(l *lan) *narrowLAN {
	l.t.Helper()
	var pods []*testnet.Host
	for i, m := range l.nodes {
		p := l.net.Pod(m.Host, fmt.Sprintf("pod-%d", i+1), netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 5}), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::5", i+1)))
		for _, a := range p.Addrs {
			serveDownloads(l.t, p, netip.AddrPortFrom(a, 80))
		}
		pods = append(pods, p)
	}
	for i, m := range l.nodes {
		here, next := pods[i], pods[(i+1)%len(pods)]
		rules := "table inet pods {\nchain in { type nat hook prerouting priority -100;\n"
		for _, a := range vips {
			family := "ip6"
			if a.Is4() {
				family = "ip"
			}
			for port, pod := range map[int]*testnet.Host{localPort: here, clusterPort: next} {
				rules += fmt.Sprintf("%s daddr %v tcp dport %d dnat %[1]s to %[4]v\n", family, a, port, netip.AddrPortFrom(pod.Addr(a.Is4()), 80))
			}
		}
		rules += fmt.Sprintf("}\nchain out { type nat hook postrouting priority 100;\nmeta l4proto tcp ct original proto-dst %d masquerade\n}\n}\n", clusterPort)
		must(l.t, m.Do(func() error {
			c := exec.Command("nft", "-f", "-")
			c.Stdin = strings.NewReader(rules)
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s in %s", err, out, rules)
			}
			return nil
		}))
	}
	l.fabric("ip", "link", "set", "outside", "mtu", "1300")
	return &narrowLAN{l, pods}
}

// serveDownloads sends downloadSize bytes for each line that a client sends.
func serveDownloads(t *testing.T, h *testnet.Host, at netip.AddrPort) {
	t.Helper()
	var server net.Listener
	must(t, h.Do(func() (err error) {
		server, err = net.Listen("tcp", at.String())
		return err
	}))
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
				if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
					_, _ = c.Write(make([]byte, downloadSize))
				}
			}()
		}
	}()
}

// leadErrors makes the router send its ICMP errors for an address to node i.
func (l *narrowLAN) leadErrors(a netip.Addr, i int) {
	l.t.Helper()
	flag, protocol := "-4", "icmp"
	if a.Is6() {
		flag, protocol = "-6", "ipv6-icmp"
	}
	l.fabric("ip", flag, "route", "replace", a.String(), "via", l.nodes[i].Addr(a.Is4()).String(), "table", "100")
	if i == 0 {
		l.fabric("ip", flag, "rule", "add", "to", a.String(), "ipproto", protocol, "lookup", "100", "pref", "100")
	}
}

// A download is an open connection whose download has not begun.
type download struct {
	net.Conn
	t *testing.T
}

// begin connects to a pod, after the pods have forgotten the MTUs that they learned.
func (l *narrowLAN) begin(a netip.Addr, port uint16) *download {
	l.t.Helper()
	for _, p := range l.pods {
		must(l.t, p.Do(func() error {
			return exec.Command("sh", "-c", "ip -4 route flush cache && ip -6 route flush cache").Run()
		}))
	}
	var c net.Conn
	must(l.t, l.net.Outside.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(a, port).String(), 20*time.Second)
		return err
	}))
	l.t.Cleanup(func() { _ = c.Close() })
	return &download{c, l.t}
}

// ends downloads and fails the test if the download does not end.
func (d *download) ends(when string) {
	d.t.Helper()
	must(d.t, d.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := d.Write([]byte("all\n"))
	must(d.t, err)
	if n, err := io.Copy(io.Discard, d); err != nil || n != downloadSize {
		d.t.Errorf("%s: %d bytes of %d: %v", when, n, downloadSize, err)
	}
}

// TestErrorLimit: anybody can send ICMP errors about connections that no node has. A node passes on a limited number.
func TestErrorLimit(t *testing.T) {
	l := newLAN(t, 3)
	l.world.Routed = true
	l.tell(0, 1, 2)
	l.lead(vips[0], 0)
	const many = 10_000
	start := time.Now()
	must(t, l.net.Outside.Do(func() error { return sendErrors(vips[0], many) }))
	limit := 500 + int(500*(time.Since(start).Seconds()+1))
	for i, m := range l.nodes {
		var text []byte
		must(t, m.Do(func() (err error) {
			text, err = exec.Command("nft", "list", "chain", "ip", "fairway-former", "error-routed").Output()
			return err
		}))
		var counts []int
		for _, match := range regexp.MustCompile(`counter packets (\d+)`).FindAllStringSubmatch(string(text), -1) {
			n, err := strconv.Atoi(match[1])
			must(t, err)
			counts = append(counts, n)
		}
		if len(counts) != 5 {
			t.Fatalf("the counters of %s are %v in %s", m.Name, counts, text)
		}
		refused, copies := counts[0], counts[1]+counts[2]+counts[3]
		if i == 0 && (limit < many && refused == 0 || copies == 0) || i > 0 && copies > 0 || copies > 2*limit {
			t.Errorf("%s refused %d errors and sent %d copies, want at most %d", m.Name, refused, copies, 2*limit)
		}
	}
}

// sendErrors sends many ICMP errors to an address of IPv4, about a connection that nobody has.
func sendErrors(to netip.Addr, many int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	from, client := to.As4(), testnet.Outside4.As4()
	quoted := slices.Concat([]byte{0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 63, unix.IPPROTO_TCP, 0, 0}, from[:], client[:], []byte{0x1f, 0x90, 0x12, 0x34, 0, 0, 0, 1})
	message := slices.Concat([]byte{3, 4, 0, 0, 0, 0, 0x05, 0x14}, quoted) // fragmentation needed, MTU 1300
	sum := uint32(0)
	for i := 0; i < len(message); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum+sum>>16))
	for range many {
		if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
			return err
		}
	}
	return nil
}
