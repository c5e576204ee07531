package settings

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// hostIP is the variable of the pod with the node's address. deploy/ sets it from status.hostIP.
const hostIP = "HOST_IP"

// node is the word for the address of the pod's node.
const node = "node"

func isAddress(text string) bool {
	if port, ok := strings.CutPrefix(text, node+":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		return err == nil && n > 0
	}
	if _, err := netip.ParseAddr(text); err == nil || text == node {
		return true
	}
	ap, err := netip.ParseAddrPort(text)
	return err == nil && ap.Port() > 0
}

// Resolve replaces the word node in a listen address with the address of this pod's node.
func Resolve(text string) (string, error) {
	port, withPort := strings.CutPrefix(text, node+":")
	if text != node && !withPort {
		return text, nil
	}
	ip, err := netip.ParseAddr(os.Getenv(hostIP))
	if err != nil {
		return "", fmt.Errorf("%q is the address in $%s, which is %q [give an address]", text, hostIP, os.Getenv(hostIP))
	}
	if withPort {
		return net.JoinHostPort(ip.String(), port), nil
	}
	return ip.String(), nil
}

// ResolveWithPort is Resolve for a listen address that needs a port.
func ResolveWithPort(text string, port uint16) (string, error) {
	text, err := Resolve(text)
	if err != nil {
		return "", err
	}
	if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(ip, port).String(), nil
	}
	return text, nil
}
