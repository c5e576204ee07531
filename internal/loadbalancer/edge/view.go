package edge

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/service"
)

// Node returns the Node for which tables are compiled: this machine, which has the addresses own. nodes and pods are the
// known addresses of the cluster. unsupported are the algorithms that the datapath lacks.
//
// No Node's claim counts inside Addresses: the administrator gave them to this machine, and a kubelet could silence a
// Service by naming the Service's address as its own.
//
// The table drops a packet to one of Addresses without a Service, because the default route would send it back to the
// router. Own addresses are the exception: an administrator may use them.
func (c *Config) Node(nodes []netip.Addr, pods []netip.Prefix, own []netip.Addr, unsupported service.Algorithms) service.Node {
	n := service.Node{
		Outside: true, Balances: c.Addresses, MasqueradeAll: c.ClientSource == SourceMasquerade, Limits: service.DefaultLimits(),
		Balance: c.Balance, Unsupported: unsupported, NodeAddrs: service.NewAddrSet(c.elsewhere(nodes)...),
	}
	n.Settings.ServiceCIDRs = without(c.Addresses, own)
	if n.MasqueradeAll {
		return n
	}
	inside := slices.Concat(c.ClusterCIDRs, pods)
	for _, a := range nodes {
		inside = append(inside, netip.PrefixFrom(a, a.BitLen()))
	}
	n.Settings.Pods = service.Widest(inside)
	return n
}

// elsewhere returns the addresses outside of Addresses.
func (c *Config) elsewhere(all []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool {
		return slices.ContainsFunc(c.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// without returns the ranges except some addresses, sorted.
func without(ranges []netip.Prefix, addrs []netip.Addr) (rest []netip.Prefix) {
	for _, p := range ranges {
		if !slices.ContainsFunc(addrs, p.Contains) {
			rest = append(rest, p)
		} else if !p.IsSingleIP() {
			rest = append(rest, without(halves(p), addrs)...)
		}
	}
	return rest
}

// halves returns the two ranges that make up a larger one.
func halves(p netip.Prefix) []netip.Prefix {
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes)
	return []netip.Prefix{netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(upper, p.Bits()+1)}
}

// OwnAddrs returns the addresses of this machine's interfaces.
func OwnAddrs() []netip.Addr {
	all, err := netns.Addrs()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, p := range all {
		out = append(out, p.Addr())
	}
	return out
}

// CheckForwarding returns an error if the kernel does not forward packets in a family of the Addresses. It changes nothing,
// because the administrator decides whether the machine is a router.
func (c *Config) CheckForwarding() error {
	var all []error
	for _, family := range []struct {
		is4             bool
		file, name, key string
	}{
		{true, "/proc/sys/net/ipv4/ip_forward", "IPv4", "net.ipv4.ip_forward"},
		{false, "/proc/sys/net/ipv6/conf/all/forwarding", "IPv6", "net.ipv6.conf.all.forwarding"},
	} {
		if !slices.ContainsFunc(c.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == family.is4 }) {
			continue
		}
		text, err := os.ReadFile(family.file)
		if err != nil {
			all = append(all, fmt.Errorf("cannot read whether this machine forwards %s: %w", family.name, err))
		} else if strings.TrimSpace(string(text)) == "0" {
			all = append(all, fmt.Errorf("this machine does not forward %s [sysctl -w %s=1, and in /etc/sysctl.d]", family.name, family.key))
		}
	}
	return errors.Join(all...)
}

// NewReporter returns a function that logs the problems of Services, each once while it lasts. Any goroutine may call the
// function.
func NewReporter(log *slog.Logger) func(api.Name, []api.Problem) {
	var mu sync.Mutex
	told := map[api.Name][]api.Problem{}
	return func(name api.Name, now []api.Problem) {
		mu.Lock()
		defer mu.Unlock()
		for _, p := range now {
			if !slices.Contains(told[name], p) {
				log.Warn("a part of a Service is left out", "service", name.String(), "reason", p.Reason, "problem", p.Message)
			}
		}
		if told[name] = now; len(now) == 0 {
			delete(told, name)
		}
	}
}
