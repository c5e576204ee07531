package dns

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// maxQuestions are the questions under way to upstreams, where the Corefile does not say.
const maxQuestions = 1000

// register makes the plugin known to CoreDNS, once in a process.
var register = sync.OnceFunc(func() { plugin.Register("clients", setupClients) })

// refused counts what a client did not get because it had its share.
var refused = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "fairway_dns_client_refused_total",
	Help: "Questions refused and connections ended because their client had as many as were left for all others.",
}, []string{"what"})

// A share divides something of which there is a fixed number among clients: one has at most as
// many as are free. So one greedy client gets half of all, two a third each, and a client that has
// nothing gets something, however greedy others are (Choudhury and Hahne, dynamic thresholds).
type share struct {
	max int

	mu    sync.Mutex
	total int
	of    map[netip.Addr]int
}

func newShare(max int) *share { return &share{max: max, of: map[netip.Addr]int{}} }

// take reports whether a client may have one more, which is counted then.
func (s *share) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[client] >= s.max-s.total {
		return false
	}
	s.of[client]++
	s.total++
	return true
}

// give counts off what take counted.
func (s *share) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.of[client]--; s.of[client] == 0 {
		delete(s.of, client)
	}
}

// perClient is the plugin that keeps one client from having all questions that may be under way to
// upstreams: whoever owns a zone whose servers are silent has as many as it likes, each for seconds.
type perClient struct {
	next  plugin.Handler
	share *share
}

// setupClients reads `clients [MAX]`. It holds for all server blocks, each by itself. All Corefiles have it: so it also
// limits who asks for metrics, and what a question about a large Service costs.
func setupClients(c *caddy.Controller) error {
	most := maxQuestions
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
			most = n
		}
	}
	dnsserver.AddPluginToAllServerBlocks(c, func(next plugin.Handler) plugin.Handler {
		return perClient{next, newShare(most)}
	})
	limitScrapes(c)
	limitLargeServices(c)
	return nil
}

// Name is the plugin's name in a Corefile.
func (perClient) Name() string { return "clients" }

var errGreedy = errors.New("the client has as many questions under way as are left for all others")

// ServeDNS passes a question on, or refuses it.
func (p perClient) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	from, _ := netip.ParseAddrPort(w.RemoteAddr().String()) // if it has none: the zero address, which is a client too
	client := from.Addr().Unmap()
	if !p.share.take(client) {
		refused.WithLabelValues("question").Inc()
		return dns.RcodeRefused, errGreedy
	}
	defer p.share.give(client)
	return plugin.NextOrFailure(p.Name(), p.next, ctx, w, r)
}

// withClients puts the plugin into a Corefile that does not have it, behind the brace of its first
// server block, so that lines keep their numbers. A Corefile without such a brace stays as it is.
func withClients(path string, text []byte, blocks []caddyfile.ServerBlock) []byte {
	if has(blocks, "clients") {
		return text
	}
	at := firstBrace(path, text)
	lines := strings.Split(string(text), "\n")
	if at < 1 || at > len(lines) {
		return text
	}
	before, behind, ok := cutBrace(lines[at-1])
	if !ok {
		return text
	}
	lines[at-1] = before + "{ clients"
	if behind = strings.TrimSpace(behind); behind != "" {
		lines[at-1] += " " + behind // a comment: a directive cannot stand there
	}
	return []byte(strings.Join(lines, "\n"))
}

// firstBrace is the line of the brace that opens the first server block; 0: there is none.
func firstBrace(path string, text []byte) int {
	d := caddyfile.NewDispenser(path, bytes.NewReader(text))
	depth, snippet, line := 0, false, 0
	for d.Next() {
		if depth == 0 && d.Line() != line {
			line, snippet = d.Line(), strings.HasPrefix(d.Val(), "(")
		}
		switch d.Val() {
		case "{":
			if depth == 0 && !snippet {
				return d.Line()
			}
			depth++
		case "}":
			depth--
		}
	}
	return 0
}

// cutBrace cuts a line at its first brace that is a word.
func cutBrace(line string) (before, behind string, ok bool) {
	for i := range line {
		alone := (i == 0 || strings.ContainsRune(" \t", rune(line[i-1]))) && (i+1 == len(line) || strings.ContainsRune(" \t\r", rune(line[i+1])))
		if line[i] == '{' && alone {
			return line[:i], line[i+1:], true
		}
	}
	return "", "", false
}
