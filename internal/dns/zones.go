package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/transfer"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/dns/names"
)

// The zones of names outside the cluster have a server block of their own, on a port of their own. The block answers for
// the zones only: a client from outside cannot ask the resolver of the cluster through it, whatever the Corefile says.

// zoneBlock returns the server block of the zones; empty: there are none.
func (s *Server) zoneBlock() string {
	if len(s.cfg.Zones) == 0 {
		return ""
	}
	keys := make([]string, len(s.cfg.Zones))
	for i, zone := range s.cfg.Zones {
		keys[i] = fmt.Sprintf("%s:%d", zone, s.cfg.ZonePort)
	}
	secondaries := ""
	for _, a := range s.cfg.ZoneTransferTo {
		secondaries += " " + a.String()
	}
	if secondaries != "" {
		secondaries = "\n    transfer {\n        to" + secondaries + "\n    }"
	}
	return fmt.Sprintf("\n%s {\n    errors\n    prometheus :9153%s\n    names\n}\n", strings.Join(keys, " "), secondaries)
}

// table returns the present names; it is nil without --zone. The plugins of CoreDNS are process-wide.
var table atomic.Pointer[func() *names.Table]

func setTable(now func() *names.Table) { table.Store(&now) }

// notifyEvery is the time between two looks for a change of the zones.
const notifyEvery = time.Second

// zonesPlugin is the plugin names. It answers for the zones of its server block.
type zonesPlugin struct {
	next  plugin.Handler
	zones []string
	now   func() *names.Table
}

// setupNames reads `names`, which has no arguments.
func setupNames(c *caddy.Controller) error {
	for c.Next() {
		if len(c.RemainingArgs()) > 0 {
			return plugin.Error("names", c.ArgErr())
		}
	}
	now := table.Load()
	if now == nil {
		now = new(func() *names.Table)
		*now = func() *names.Table { return nil }
	}
	z := &zonesPlugin{zones: plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys), now: *now}
	config := dnsserver.GetConfig(c)
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		z.next = next
		return z
	})
	ctx, cancel := context.WithCancel(context.Background())
	c.OnStartup(func() error {
		if t, ok := config.Handler("transfer").(*transfer.Transfer); ok {
			go z.notify(ctx, t)
		}
		return nil
	})
	c.OnShutdown(func() error { cancel(); return nil })
	return nil
}

// notify notifies the secondaries of changes until ctx ends.
func (z *zonesPlugin) notify(ctx context.Context, t *transfer.Transfer) {
	var serial uint32
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(notifyEvery):
		}
		now := z.now()
		if now == nil || now.Serial() == serial {
			continue
		}
		serial = now.Serial()
		for _, zone := range z.zones {
			_ = t.Notify(zone) // a secondary that does not answer looks by itself
		}
	}
}

// Name is the plugin's name in a Corefile.
func (*zonesPlugin) Name() string { return "names" }

// ServeDNS answers a question. Before the objects are read it answers SERVFAIL, so that a resolver asks another server.
func (z *zonesPlugin) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if plugin.Zones(z.zones).Matches(state.Name()) == "" {
		return plugin.NextOrFailure(z.Name(), z.next, ctx, w, r)
	}
	now := z.now()
	if now == nil {
		return dns.RcodeServerFailure, nil
	}
	if t := state.QType(); t == dns.TypeAXFR || t == dns.TypeIXFR || state.QClass() != dns.ClassINET {
		return dns.RcodeRefused, nil
	}
	a := now.Resolve(state.Name(), state.Type())
	if a.Code == names.NotAZone {
		return dns.RcodeRefused, nil
	}
	m := new(dns.Msg)
	m.SetReply(r)
	m.Authoritative = true
	m.Answer, m.Ns, m.Extra = rrs(a.Answer), rrs(a.Authority), rrs(a.Additional)
	for _, rr := range m.Answer {
		rr.Header().Name = state.QName() // with the letters of the question
	}
	if a.Code == names.NoName {
		m.Rcode = dns.RcodeNameError
	}
	state.SizeAndDo(m)
	m = state.Scrub(m)
	return dns.RcodeSuccess, w.WriteMsg(m)
}

// Transfer sends a zone to a secondary. The plugin transfer checks its address.
func (z *zonesPlugin) Transfer(zone string, serial uint32) (<-chan []dns.RR, error) {
	now := z.now()
	if plugin.Zones(z.zones).Matches(zone) == "" || now == nil {
		return nil, transfer.ErrNotAuthoritative
	}
	all := rrs(now.Records(zone))
	if len(all) == 0 {
		return nil, transfer.ErrNotAuthoritative
	}
	out := make(chan []dns.RR, 2)
	out <- all[:1]
	if serial == 0 || serial < now.Serial() {
		out <- append(all[1:], all[0])
	}
	close(out)
	return out, nil
}

// rrs converts records.
func rrs(all []names.Record) (out []dns.RR) {
	for _, r := range all {
		h := dns.RR_Header{Name: r.Name, Class: dns.ClassINET, Ttl: r.TTL, Rrtype: dns.StringToType[r.Type]}
		switch r.Type {
		case "A":
			out = append(out, &dns.A{Hdr: h, A: net.IP(netip.MustParseAddr(r.Data).AsSlice())})
		case "AAAA":
			out = append(out, &dns.AAAA{Hdr: h, AAAA: net.IP(netip.MustParseAddr(r.Data).AsSlice())})
		default:
			if rr, err := dns.NewRR(r.String()); err == nil {
				out = append(out, rr)
			}
		}
	}
	return out
}
