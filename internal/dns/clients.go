package dns

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strconv"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// maxQuestions limits the questions under way to upstreams, unless the Corefile has another number.
const maxQuestions = 1000

// register adds the plugins clients and names to CoreDNS, once in a process.
var register = sync.OnceFunc(func() {
	plugin.Register("clients", setupClients)
	plugin.Register("names", setupNames)
})

var refused = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "fairway_dns_client_refused_total",
	Help: "Questions refused and connections closed because their client had as many as were left for all others.",
}, []string{"what"})

// A share divides a limited number of things among clients: a client has at most as many as are free. One greedy client
// gets half of all things, two get a third each, and some are always left for a client that has none (Choudhury and
// Hahne, dynamic thresholds).
type share struct {
	limit int

	mu       sync.Mutex
	total    int
	byClient map[netip.Addr]int
}

func newShare(limit int) *share { return &share{limit: limit, byClient: map[netip.Addr]int{}} }

// take reports whether a client may have one more, and counts it if so.
func (s *share) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byClient[client] >= s.limit-s.total {
		return false
	}
	s.byClient[client]++
	s.total++
	return true
}

// give undoes one take.
func (s *share) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.byClient[client]--; s.byClient[client] == 0 {
		delete(s.byClient, client)
	}
}

// perClient is the plugin that shares the questions to upstreams among clients. A question to a silent upstream is under
// way for seconds. Without shares, one client with such questions uses up the number that forward allows for all.
type perClient struct {
	next  plugin.Handler
	share *share
}

// setupClients reads `clients [LIMIT]`. The plugin works in all server blocks, with a share for each. Every Corefile has
// the plugin, so its setup also limits the metrics servers and the view of Services.
func setupClients(c *caddy.Controller) error {
	limit := maxQuestions
	for c.Next() {
		args := c.RemainingArgs()
		if len(args) > 1 {
			return plugin.Error("clients", c.ArgErr())
		}
		for _, arg := range args {
			n, err := strconv.Atoi(arg)
			if err != nil || n < 2 {
				return plugin.Error("clients", c.Errf("%q is no number of questions: give 2 or more", arg))
			}
			limit = n
		}
	}
	dnsserver.AddPluginToAllServerBlocks(c, func(next plugin.Handler) plugin.Handler {
		return perClient{next, newShare(limit)}
	})
	limitScrapes(c)
	limitServices(c)
	useFronts(c)
	return nil
}

// Name is the plugin's name in a Corefile.
func (perClient) Name() string { return "clients" }

var errGreedy = errors.New("the client has as many questions under way as are left for all others")

// ServeDNS passes a question on, or refuses it.
func (p perClient) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	from, _ := netip.ParseAddrPort(w.RemoteAddr().String()) // without an address: the zero Addr, which is a client too
	client := from.Addr().Unmap()
	if !p.share.take(client) {
		refused.WithLabelValues("question").Inc()
		return dns.RcodeRefused, errGreedy
	}
	defer p.share.give(client)
	return plugin.NextOrFailure(p.Name(), p.next, ctx, w, r)
}

// withClients returns a Corefile with the plugin clients, if it has none. It puts the plugin before the last brace that
// ends a server block, so that the lines before it keep their numbers. blocks are the server blocks of text.
func withClients(path string, text []byte, blocks []caddyfile.ServerBlock) []byte {
	if has(blocks, "clients") {
		return text
	}
	for at := bytes.LastIndexByte(text, '}'); at >= 0; at = bytes.LastIndexByte(text[:at], '}') {
		edited := bytes.Join([][]byte{text[:at], []byte("\nclients\n"), text[at:]}, nil)
		again, err := parseBlocks(path, edited)
		if err == nil && len(again) == len(blocks) && has(again, "clients") {
			return edited
		}
	}
	return text // a Corefile without braces, with one block
}
