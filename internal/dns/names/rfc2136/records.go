package rfc2136

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

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
	cfg   Config
	zones map[string]*content
}

// A content is the content of a zone.
type content struct {
	serial  uint32
	read    time.Time
	number  int                            // of records
	records map[string]map[string][]dns.RR // by name and type
}

// maxAge is the time after which a zone is transferred although its serial number is the same: a server may forget to
// change the number.
const maxAge = 10 * time.Minute

// New returns a Client that has connected to nobody.
func New(cfg Config) *Client { return &Client{cfg: cfg, zones: map[string]*content{}} }

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

// Records returns the records of all zones. It transfers the zones whose serial numbers have changed.
func (c *Client) Records(ctx context.Context) (all []plan.Set, err error) {
	total := 0
	for _, zone := range c.cfg.Zones {
		z, err := c.current(ctx, zone, MaxRecords-total)
		if err != nil {
			delete(c.zones, zone)
			return nil, fmt.Errorf("read zone %s: %w", zone, err)
		}
		c.zones[zone] = z
		total += z.number
		for name, kinds := range z.records {
			for kind, rrs := range kinds {
				all = append(all, set(name, kind, rrs))
			}
		}
	}
	return all, nil
}

// current returns the content of a zone, which must have at most limit records.
func (c *Client) current(ctx context.Context, zone string, limit int) (*content, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	s, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if last := c.zones[zone]; last != nil && time.Since(last.read) < maxAge {
		serial, err := s.serial(zone)
		if err != nil {
			return nil, err
		}
		if serial == last.serial {
			return last, nil
		}
	}
	z := &content{read: time.Now(), records: map[string]map[string][]dns.RR{}}
	return z, s.transfer(zone, func(rr dns.RR) error {
		if soa, ok := rr.(*dns.SOA); ok {
			z.serial = soa.Serial
		}
		if z.number++; z.number > limit {
			return fmt.Errorf("the zones have more than %d records [let Fairway write to a smaller zone]", MaxRecords)
		}
		c.keep(z, zone, rr)
		return nil
	})
}

// serial asks for the serial number of a zone.
func (s *session) serial(zone string) (uint32, error) {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(zone), dns.TypeSOA)
	if err := s.send(q); err != nil {
		return 0, err
	}
	m, err := s.receive(q.Id, true)
	if err != nil {
		return 0, err
	}
	for _, rr := range m.Answer {
		if soa, ok := rr.(*dns.SOA); ok {
			return soa.Serial, nil
		}
	}
	return 0, &Refusal{m.Rcode, "", "the question for the SOA record", "does the server have the zone, and may the key ask it?"}
}

// transfer reads a zone, and calls keep with each record.
func (s *session) transfer(zone string, keep func(dns.RR) error) error {
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
			return errors.New("the DNS server sends no zone")
		}
		for _, rr := range m.Answer {
			if rr.Header().Rrtype == dns.TypeSOA {
				if soas++; soas == 2 {
					break
				}
			}
			if err := keep(rr); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep stores a record. A name belongs to the zone with the longest name: the upper zone has the records of a delegation.
func (c *Client) keep(z *content, zone string, rr dns.RR) {
	name := strings.TrimSuffix(dns.CanonicalName(rr.Header().Name), ".")
	if rr.Header().Class != dns.ClassINET || c.zone(name) != zone {
		return
	}
	kinds := z.records[name]
	if kinds == nil {
		kinds = map[string][]dns.RR{}
		z.records[name] = kinds
	}
	kind := dns.Type(rr.Header().Rrtype).String()
	kinds[kind] = append(kinds[kind], rr)
}

// of returns the records of a name and type that Records has read.
func (c *Client) of(name, kind string) []dns.RR {
	if z := c.zones[c.zone(name)]; z != nil {
		return z.records[name][kind]
	}
	return nil
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
