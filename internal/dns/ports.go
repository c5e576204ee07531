package dns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/fairway-net/fairway/internal/text"
)

// checkPorts returns an error if another server listens on a port of the Corefile. CoreDNS opens its sockets with
// SO_REUSEPORT, so a second server on the same port would start without an error and get half of the queries.
func checkPorts(blocks []caddyfile.ServerBlock, port uint16) error {
	tried := make(map[string]bool)
	for _, b := range blocks {
		for _, key := range b.Keys {
			proto, rest := parse.Transport(key)
			_, p, err := plugin.SplitHostPort(rest)
			if err != nil {
				return fmt.Errorf("read Corefile: server block %q: %w", key, text.OneLine(err))
			}
			if p == "" && proto == transport.DNS {
				p = strconv.Itoa(int(port))
			}
			if p == "" || p == "0" || tried[proto+p] {
				continue // another transport's own port, or a free port
			}
			tried[proto+p] = true
			if err := tryPort(p, proto == transport.DNS); err != nil {
				return err
			}
		}
	}
	return nil
}

// tryPort opens the sockets of a server, without SO_REUSEPORT, and closes them.
func tryPort(port string, udp bool) error {
	ln, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return fmt.Errorf("listen on TCP port %s: %w%s", port, errno(err), advice(err))
	}
	defer func(c io.Closer) { _ = c.Close() }(ln)
	if !udp {
		return nil
	}
	pc, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return fmt.Errorf("listen on UDP port %s: %w%s", port, errno(err), advice(err))
	}
	return pc.Close()
}

// errno returns the bare reason of net's error, which repeats the address twice.
func errno(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// advice returns a hint for the usual reasons why a port cannot be opened; empty for other reasons.
func advice(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return " [another DNS server listens there: stop it, or choose another port]"
	case errors.Is(err, syscall.EACCES):
		return " [ports below 1024 need root, CAP_NET_BIND_SERVICE, or the sysctl net.ipv4.ip_unprivileged_port_start]"
	}
	return ""
}
