package rfc2136

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/miekg/dns"

	"github.com/fairway-net/fairway/internal/dns/names/plan"
)

// Apply carries out the changes of a plan for the records that Records has read. It returns the number of changes made,
// and the names whose records another writer has changed since then: the next plan decides about them. After a refusal
// it goes on with the next name, and returns the refusals.
func (c *Client) Apply(ctx context.Context, changes []plan.Change) (made int, lost []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	s, err := c.dial(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer s.close()
	var refusals []error
	for names := range c.batches(changes) {
		one, refused, err := c.send(s, names)
		made += one
		for _, r := range refused {
			if r.lost() {
				lost = append(lost, r.Name)
				defer delete(c.zones, names.zone) // read it again, even if its serial number is the same
			} else {
				refusals = append(refusals, r)
			}
		}
		switch {
		case err != nil:
			return made, lost, errors.Join(append(refusals, err)...)
		case len(refusals) >= maxRefusals:
			return made, lost, fmt.Errorf("%w; the other names are left for later", errors.Join(refusals[:maxRefusals]...))
		}
	}
	return made, lost, errors.Join(refusals...)
}

// maxRefusals is the number of refused names after which Apply gives up.
const maxRefusals = 5

// A batch has the changes of names of one zone, a group for each name.
type batch struct {
	zone   string
	groups [][]plan.Change
}

// maxRecords is the number of records after which a message gets no further name. A server needs as long for a message
// with one name as for one with many.
const maxRecords = 200

// batches yields the changes in groups of names of one zone.
func (c *Client) batches(changes []plan.Change) func(func(batch) bool) {
	return func(yield func(batch) bool) {
		var b batch
		records := 0
		for len(changes) > 0 {
			name := changes[0].Set().Name
			n := slices.IndexFunc(changes, func(c plan.Change) bool { return c.Set().Name != name })
			if n < 0 {
				n = len(changes)
			}
			zone := c.zone(name)
			if len(b.groups) > 0 && (zone != b.zone || records > maxRecords) {
				if !yield(b) {
					return
				}
				b, records = batch{}, 0
			}
			b.zone, b.groups = zone, append(b.groups, changes[:n])
			for _, one := range changes[:n] {
				records += 8 + 2*len(one.Old.Values) + len(one.New.Values)
			}
			changes = changes[n:]
		}
		if len(b.groups) > 0 {
			yield(b)
		}
	}
}

// send sends a batch in one message. If the server refuses it, or it is too large, it sends a message for each name.
func (c *Client) send(s *session, b batch) (made int, refused []*Refusal, err error) {
	err = c.update(s, b)
	var refusal *Refusal
	switch {
	case err == nil:
		for _, g := range b.groups {
			made += len(g)
		}
		return made, nil, nil
	case len(b.groups) > 1 && (errors.As(err, &refusal) || errors.Is(err, errEncode)):
		for _, g := range b.groups {
			one, more, err := c.send(s, batch{b.zone, [][]plan.Change{g}})
			made, refused = made+one, append(refused, more...)
			if err != nil {
				return made, refused, err
			}
		}
		return made, refused, nil
	case errors.As(err, &refusal):
		return 0, []*Refusal{refusal}, nil
	}
	return 0, nil, err
}

// update sends a batch in one message.
func (c *Client) update(s *session, b batch) error {
	name := b.groups[0][0].Set().Name
	if b.zone == "" {
		return fmt.Errorf("%s is in no zone", name)
	}
	m := new(dns.Msg).SetUpdate(dns.Fqdn(b.zone))
	for _, changes := range b.groups {
		for _, kind := range plan.Types {
			c.require(m, changes[0].Set().Name, kind)
		}
		for _, change := range changes {
			if err := c.change(m, change); err != nil {
				return err
			}
		}
	}
	if err := s.send(m); err != nil {
		return err
	}
	answer, err := s.receive(m.Id, true)
	if err != nil {
		return err
	}
	if answer.Rcode != dns.RcodeSuccess {
		return &Refusal{answer.Rcode, name, "the update of " + name, "may the key write records A, AAAA, CNAME and TXT of the zone " + b.zone + "?"}
	}
	return nil
}

// lost reports whether the server has other records than the plan was made for.
func (r *Refusal) lost() bool {
	return slices.Contains([]int{dns.RcodeYXDomain, dns.RcodeYXRrset, dns.RcodeNXRrset}, r.Code)
}

// require adds the condition that the records of a name and type are those which Records has read.
func (c *Client) require(m *dns.Msg, name, kind string) {
	read := c.of(name, kind)
	if len(read) == 0 {
		m.RRsetNotUsed([]dns.RR{&dns.ANY{Hdr: dns.RR_Header{Name: dns.Fqdn(name), Rrtype: dns.StringToType[kind]}}})
		return
	}
	for _, rr := range read {
		m.Used([]dns.RR{dns.Copy(rr)})
	}
}

// change adds a change with its TXT record to a message. Texts that stay are not touched.
func (c *Client) change(m *dns.Msg, change plan.Change) error {
	if len(change.Old.Values) > 0 {
		m.RemoveRRset([]dns.RR{&dns.ANY{Hdr: dns.RR_Header{Name: dns.Fqdn(change.Old.Name), Rrtype: dns.StringToType[change.Old.Type]}}})
	}
	for _, v := range change.New.Values {
		rr, err := record(change.New, v)
		if err != nil {
			return err
		}
		m.Insert([]dns.RR{rr})
	}
	txt := change.NewTXT
	c.require(m, txt.Name, txt.Type)
	for _, rr := range c.of(txt.Name, txt.Type) {
		if v := value(rr); !slices.Contains(txt.Values, v) {
			m.Remove([]dns.RR{dns.Copy(rr)})
		}
	}
	for _, v := range txt.Values {
		if slices.Contains(change.OldTXT.Values, v) {
			continue
		}
		rr, err := record(txt, v)
		if err != nil {
			return err
		}
		m.Insert([]dns.RR{rr})
	}
	return nil
}
