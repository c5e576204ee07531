package hostport

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// kubelet's rule (pkg/kubelet/kubelet_network_linux.go): a packet to a loopback address that
// comes from another one is dropped, unless it is translated.
const kubeletFirewall = `table ip kubelet {
	chain out {
		type filter hook output priority 0;
		ct state established,related accept
		ct status & dnat == dnat accept
		ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 drop
	}
}`

// inNode runs f in a namespace.
func inNode(t *testing.T, h *testnet.Host, f func() error) {
	t.Helper()
	if err := h.Do(f); err != nil {
		t.Fatal(err)
	}
}

func inHost(t *testing.T, h *testnet.Host, args ...string) (out string) {
	t.Helper()
	inNode(t, h, func() error {
		text, err := exec.Command("nft", args...).CombinedOutput()
		if out = string(text); err != nil {
			err = fmt.Errorf("nft: %w: %s", err, text)
		}
		return err
	})
	return out
}

// call connects from an address of the node and returns what the server says.
func call(t *testing.T, h *testnet.Host, from, to netip.AddrPort) (answer string, err error) {
	err = h.Do(func() error {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: patience}
		c, err := d.Dial("tcp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		all, err := io.ReadAll(c)
		answer = string(all)
		return err
	})
	return answer, err
}

// answerAt makes a host answer connections with the address that they came to.
func answerAt(t *testing.T, h *testnet.Host, all ...netip.AddrPort) {
	t.Helper()
	for _, at := range all {
		var l net.Listener
		inNode(t, h, func() (err error) {
			l, err = net.Listen("tcp", at.String())
			return err
		})
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, at.String())
				c.Close()
			}
		}()
	}
}

// TestRules: behind kubelet's firewall a client with an address of the node reaches a host
// port on a loopback address, in both families; a restart writes nothing; what another
// program did to the table is put back; without ports there is no table.
func TestRules(t *testing.T) {
	n := testnet.New(t)
	host := n.Node("node-1")
	pod4, pod6 := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244:1::5")
	answerAt(t, n.Pod(host, "web", pod4, pod6), netip.AddrPortFrom(pod4, 80), netip.AddrPortFrom(pod6, 80))
	lo4, lo6 := at("127.0.0.1", 8080), at("::1", 8080)
	want := map[service.Key]netip.AddrPort{
		{Addr: lo4, Proto: api.TCP}: netip.AddrPortFrom(pod4, 80),
		{Addr: lo6, Proto: api.TCP}: netip.AddrPortFrom(pod6, 80),
	}
	inHost(t, host, kubeletFirewall)
	var r *rules
	sync := func(want map[service.Key]netip.AddrPort) {
		t.Helper()
		inNode(t, host, func() error { return r.sync(t.Context(), want) })
	}
	r = newRules()
	defer func() { r.Close() }()
	sync(want)
	reached := func(what string) {
		t.Helper()
		for k, to := range want {
			from := netip.AddrPortFrom(host.Addr(k.Addr.Addr().Is4()), 0)
			if got, err := call(t, host, from, k.Addr); err != nil || got != to.String() {
				t.Errorf("%s: %v from %v: %q %v, want %v", what, k, from, got, err, to)
			}
		}
	}
	reached("after the first sync")

	before := inHost(t, host, "-a", "list", "ruleset")
	r.Close()
	r = newRules()
	sync(want)
	if after := inHost(t, host, "-a", "list", "ruleset"); after != before {
		t.Errorf("a restart changed\n%s\nto\n%s", before, after)
	}
	inHost(t, host, "delete", "table", "inet", "fairway-hostports")
	if err := host.Do(func() error { return r.sync(t.Context(), want) }); err != nil {
		sync(want) // the table began anew
	}
	reached("after another program deleted the table")
	fewer := maps.Clone(want)
	delete(fewer, service.Key{Addr: lo6, Proto: api.TCP})
	sync(fewer)
	if text := inHost(t, host, "list", "table", "inet", "fairway-hostports"); strings.Contains(text, pod6.String()) || !strings.Contains(text, pod4.String()) {
		t.Errorf("after one port went: %s", text)
	}
	sync(nil)
	if text := inHost(t, host, "list", "tables"); strings.Contains(text, "fairway") {
		t.Errorf("without ports there is still\n%s", text)
	}
}
