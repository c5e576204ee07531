package dns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/hosts"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"
)

// A frontZone is a zone of Services whose answers may be kept, because no plugin of its server block changes them in a
// way that a kept answer does not.
type frontZone struct {
	wire       []byte // without root label
	kubernetes kubernetesHandler
	shuffle    bool // the plugin loadbalance
	cached     bool // the plugin cache
	maxTTL     uint32
	clients    *admitted    // of the plugin acl; nil: every client gets answers
	hosts      *hosts.Hosts // the plugin hosts; nil: none

	server string // the label of metrics
	counts *metrics.Metrics
	mu     sync.Mutex
	made   map[countersKey][2]*counters
}

// pass reports whether the plugin hosts passes questions about a name on. Its file may change at any time.
func (z *frontZone) pass(name string) bool {
	return z.hosts == nil || len(z.hosts.LookupStaticHostV4(name)) == 0 && len(z.hosts.LookupStaticHostV6(name)) == 0 && z.hosts.Fall.Through(name)
}

// minCacheTTL is the smallest TTL of the plugin cache.
const minCacheTTL = uint32(dnsutil.MinimalDefaultTTL / time.Second)

// keptWith are the plugins that leave answers of the kubernetes plugin as they are, or that kept answers imitate.
var keptWith = []string{
	"reload", "ready", "health", "prometheus", "errors", "loadbalance", "acl", "cache", "transfer",
	"hosts", "kubernetes", "names", "file", "loop", "clients", "forward",
}

// A site is the configuration of one zone of a server block.
type site struct {
	*dnsserver.Config
	block   caddyfile.ServerBlock
	clients *admitted // by the plugin acl of the block
}

// useFronts opens a front for each port when CoreDNS serves it, and closes the front with the port.
func useFronts(c *caddy.Controller) {
	configs := allConfigs(c)
	scrapes.mu.Lock()
	blocks := scrapes.blocks
	scrapes.mu.Unlock()
	var sites []site
	for _, b := range blocks {
		clients := &admitted{types: map[netip.Addr]uint8{}}
		for range b.Keys {
			s := site{configs[len(sites)], b, clients}
			clients.watch(s.Config)
			sites = append(sites, s)
		}
	}
	load := &corefileLoad{}
	for _, s := range sites {
		s.UDPDecorateWriterFunc = func(server *dnsserver.Server) dns.DecorateWriter {
			serveFront(load, server, frontZones(server.Addr, sites))
			return nil // answers are written as before
		}
	}
	c.OnShutdown(func() error {
		closeFronts(func(of *corefileLoad) bool { return of == load }) // the next Corefile may have other ports
		return nil
	})
}

// frontZones returns the zones of a server with kept answers.
func frontZones(addr string, all []site) (zones []*frontZone) {
	var sites []site
	for _, s := range all {
		if s.Transport == transport.DNS && transport.DNS+"://:"+s.Port == addr {
			sites = append(sites, s)
		}
	}
	for i, s := range sites {
		k, ok := s.Handler("kubernetes").(kubernetesHandler)
		if !ok {
			continue
		}
		for _, zone := range k.Zones {
			z := &frontZone{kubernetes: k, server: addr, made: map[countersKey][2]*counters{}}
			if strings.HasSuffix(zone, ".arpa.") || !s.keeps(z) || !answers(sites, i, zone) {
				continue
			}
			if wire := nameToWire(zone); len(wire) > 1 {
				z.wire = wire[:len(wire)-1]
			}
			if s.Handler("acl") != nil {
				z.clients = s.clients
			}
			if h, ok := s.Handler("hosts").(hosts.Hosts); ok {
				z.hosts = &h
			}
			z.counts, _ = s.Handler("prometheus").(*metrics.Metrics)
			zones = append(zones, z)
		}
	}
	return zones
}

// answers reports whether sites[i] answers for all names of a zone.
func answers(sites []site, i int, zone string) bool {
	own := sites[i].Zone
	for j, other := range sites {
		if j != i && (plugin.Name(zone).Matches(other.Zone) || plugin.Name(own).Matches(other.Zone) && plugin.Name(other.Zone).Matches(zone)) {
			return false
		}
	}
	return plugin.Name(own).Matches(zone)
}

// keeps reports whether the answers of a site may be kept, and sets the parts of z that follow from the site's plugins.
func (s site) keeps(z *frontZone) bool {
	if len(s.FilterFuncs) > 0 || s.ViewName != "" || s.Debug {
		return false
	}
	for name, tokens := range s.block.Tokens {
		words := uses("", tokens)
		if !slices.Contains(keptWith, name) || len(words) != 1 && name != "kubernetes" && name != "prometheus" && name != "forward" && name != "file" {
			return false
		}
		switch name {
		case "acl":
			if words[0].Text != "acl" {
				return false // for a part of the names
			}
		case "loadbalance":
			z.shuffle = true
			if words[0].Text != "loadbalance" && words[0].Text != "loadbalance round_robin" {
				return false
			}
		case "cache":
			var ok bool
			if z.maxTTL, ok = cacheTTL(tokens); !ok {
				return false
			}
			z.cached = true
		}
	}
	return true
}

// cacheTTL returns the largest TTL that the plugin cache gives, if its block has nothing else that changes answers.
func cacheTTL(tokens []caddyfile.Token) (ttl uint32, ok bool) {
	ttl, line := uint32(dnsutil.MaximumDefaultTTL.Seconds())/2, tokens[0].Line
	inside := false
	for i, t := range tokens[1:] {
		switch {
		case t.Text == "{" || t.Text == "}":
			inside = true
		case inside && t.Line != line && t.Text != "disable" && t.Text != "servfail" && t.Text != "prefetch":
			return 0, false
		case i == 0:
			if n, err := strconv.ParseUint(t.Text, 10, 31); err == nil {
				ttl = uint32(n)
			}
		}
		line = t.Line
	}
	return ttl, true
}
