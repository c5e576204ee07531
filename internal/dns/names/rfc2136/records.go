package rfc2136

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/dns/names/plan"
)

// MaxRecords is the largest number of records of all zones.
const MaxRecords = 500_000

// A Config names a server.
type Config struct {
	Server string              // host:port
	Zones  []string            // in lower case, without the dot at the end
	Key    func() (Key, error) // called for each connection; nil: no message is signed
}

// A Client reads and writes the zones of a server. It belongs to one goroutine.
type Client struct {
	cfg Config
	// read are the records that Records has read, by name and type.
	read map[string]map[string][]dns.RR
}

// New returns a Client that has connected to nobody.
func New(cfg Config) *Client { return &Client{cfg: cfg} }

// Zones returns the zones.
func (c *Client) Zones() []string { return c.cfg.Zones }

// Adjust returns the wants: a server takes all records.
func (c *Client) Adjust(_ context.Context, wants []plan.Want) ([]plan.Want, error) { return wants, nil }

// Domain chooses all names.
func (c *Client) Domain() plan.Filter { return plan.Filter{} }

func (c *Client) dial(ctx context.Context) (*session, error) {
	var key Key
	if c.cfg.Key != nil {
		var err error
		if key, err = c.cfg.Key(); err != nil {
			return nil, err
		}
	}
	return dial(ctx, c.cfg.Server, key)
}

// Records transfers all zones, and returns their records.
func (c *Client) Records(ctx context.Context) (all []plan.Set, err error) {
	c.read = map[string]map[string][]dns.RR{}
	total := 0
	for _, zone := range c.cfg.Zones {
		if err := c.transfer(ctx, zone, &total); err != nil {
			return nil, fmt.Errorf("read zone %s: %w", zone, err)
		}
	}
	for name, kinds := range c.read {
		for kind, rrs := range kinds {
			all = append(all, set(name, kind, rrs))
		}
	}
	return all, nil
}

// transfer reads a zone.
func (c *Client) transfer(ctx context.Context, zone string, total *int) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	s, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	q := new(dns.Msg).SetAxfr(dns.Fqdn(zone))
	if err := s.send(q); err != nil {
		return err
	}
	for soas, first := 0, true; soas < 2; first = false {
		m, err := s.receive(q.Id, first)
		if err != nil {
			return err
		}
		if m.Rcode != dns.RcodeSuccess {
			return &Refusal{m.Rcode, "", "the transfer (AXFR)", "does the server have the zone, and may the key transfer it?"}
		}
		if len(m.Answer) == 0 || first && m.Answer[0].Header().Rrtype != dns.TypeSOA {
			return fmt.Errorf("the DNS server sends no zone")
		}
		for _, rr := range m.Answer {
			if rr.Header().Rrtype == dns.TypeSOA {
				if soas++; soas == 2 {
					break
				}
			}
			if *total++; *total > MaxRecords {
				return fmt.Errorf("the zones have more than %d records [let Fairway write to a smaller zone]", MaxRecords)
			}
			c.keep(zone, rr)
		}
	}
	return nil
}

// keep stores a record. A name belongs to the zone with the longest name: the upper zone has the records of a delegation.
func (c *Client) keep(zone string, rr dns.RR) {
	name := strings.TrimSuffix(dns.CanonicalName(rr.Header().Name), ".")
	if rr.Header().Class != dns.ClassINET || c.zone(name) != zone {
		return
	}
	kinds := c.read[name]
	if kinds == nil {
		kinds = map[string][]dns.RR{}
		c.read[name] = kinds
	}
	kind := dns.Type(rr.Header().Rrtype).String()
	kinds[kind] = append(kinds[kind], rr)
}

// zone returns the zone of a name; empty: none.
func (c *Client) zone(name string) (longest string) {
	for _, z := range c.cfg.Zones {
		if dns.IsSubDomain(dns.Fqdn(z), dns.Fqdn(name)) && len(z) > len(longest) {
			longest = z
		}
	}
	return longest
}

// set converts records of a name and type.
func set(name, kind string, rrs []dns.RR) plan.Set {
	s := plan.Set{Name: name, Type: kind, TTL: rrs[0].Header().Ttl}
	for _, rr := range rrs {
		s.Values = append(s.Values, value(rr))
	}
	slices.Sort(s.Values)
	return s
}

// value returns the value of a record, as plan.Set has it; other types have none.
func value(rr dns.RR) string {
	switch rr := rr.(type) {
	case *dns.A:
		a, _ := netip.AddrFromSlice(rr.A)
		return a.Unmap().String()
	case *dns.AAAA:
		a, _ := netip.AddrFromSlice(rr.AAAA)
		return a.String()
	case *dns.CNAME:
		return strings.TrimSuffix(dns.CanonicalName(rr.Target), ".")
	case *dns.TXT:
		return unescape(strings.Join(rr.Txt, ""))
	}
	return ""
}

// unescape returns the bytes of a text that miekg/dns holds with escapes: \" and \DDD.
func unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		i++
		if i+2 < len(text) && isDigit(text[i]) && isDigit(text[i+1]) && isDigit(text[i+2]) {
			b.WriteByte((text[i]-'0')*100 + (text[i+1]-'0')*10 + text[i+2] - '0')
			i += 2
			continue
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// record makes a record for a value of a plan.Set. The package plan makes only addresses, host names and owners' texts.
func record(s plan.Set, value string) (dns.RR, error) {
	if s.Type == "TXT" {
		txt := &dns.TXT{Hdr: dns.RR_Header{Name: dns.Fqdn(s.Name), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: s.TTL}}
		for part := range slices.Chunk([]byte(value), 255) {
			txt.Txt = append(txt.Txt, string(part))
		}
		return txt, nil
	}
	if s.Type == "CNAME" {
		value = dns.Fqdn(value)
	}
	rr, err := dns.NewRR(fmt.Sprintf("%s %d IN %s %s", dns.Fqdn(s.Name), s.TTL, s.Type, value))
	if err != nil || rr == nil {
		return nil, fmt.Errorf("make a record %v: %w", s, err)
	}
	return rr, nil
}
