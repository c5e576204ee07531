// Package webhook is the client of ExternalDNS's webhook protocol, by which a small server, most often a sidecar, reads
// and writes the records of a DNS provider.
//
//	GET /                  the provider's domains
//	POST /adjustendpoints  the provider's form of wanted records
//	GET /records           all records
//	POST /records          changes
//
// It promises: an answer is read up to MaxBody bytes and MaxRecords records, and each request ends after Timeout. The server
// is trusted with the records, and with nothing else: what it says of other zones or types is dropped.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/dns/names/plan"
)

// Limits for answers, and for the time that one may take.
const (
	MaxBody    = 32 << 20
	MaxRecords = 100_000
	Timeout    = 30 * time.Second
)

// mediaType is the version of the protocol.
const mediaType = "application/external.dns.webhook+json;version=1"

// An endpoint is a set of records in the protocol.
type endpoint struct {
	DNSName          string            `json:"dnsName,omitempty"`
	Targets          []string          `json:"targets,omitempty"`
	RecordType       string            `json:"recordType,omitempty"`
	SetIdentifier    string            `json:"setIdentifier,omitempty"`
	RecordTTL        int64             `json:"recordTTL,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	ProviderSpecific []property        `json:"providerSpecific,omitempty"`
}

type property struct {
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
}

// changes are what POST /records carries.
type changes struct {
	Create    []endpoint `json:"create,omitempty"`
	UpdateOld []endpoint `json:"updateOld,omitempty"`
	UpdateNew []endpoint `json:"updateNew,omitempty"`
	Delete    []endpoint `json:"delete,omitempty"`
}

// A Client reads and writes records through a server. It belongs to one goroutine.
type Client struct {
	base   *url.URL
	http   *http.Client
	domain *plan.Filter        // nil: not asked yet
	wanted map[string]endpoint // of the last Adjust, in the provider's form
	read   map[string]endpoint // of the last Records
}

// New returns a Client that has asked nobody.
func New(base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--webhook-provider-url %q is no URL [write one as http://localhost:8888]", base)
	}
	return &Client{base: u, http: &http.Client{Timeout: Timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Zones returns nil: the protocol has domains, not zones.
func (c *Client) Zones() []string { return nil }

// key identifies a set of records.
func key(name, kind string) string { return name + " " + kind }

// Adjust returns the wants in the provider's form. Wants that the provider does not take are left out.
func (c *Client) Adjust(ctx context.Context, wants []plan.Want) (all []plan.Want, err error) {
	if err := c.negotiate(ctx); err != nil {
		return nil, err
	}
	by, asked, adjusted := map[string]plan.Want{}, []endpoint{}, []endpoint{}
	for _, w := range wants {
		if c.domain.Match(w.Name) {
			by[key(w.Name, w.Type)] = w
			asked = append(asked, wire(w.Set))
		}
	}
	if len(asked) > 0 {
		if err := c.do(ctx, http.MethodPost, "adjustendpoints", asked, http.StatusOK, &adjusted); err != nil {
			return nil, err
		}
	}
	c.wanted = map[string]endpoint{}
	for _, e := range adjusted {
		s := set(e)
		w, ok := by[key(s.Name, s.Type)]
		if !ok || len(s.Values) == 0 || e.SetIdentifier != "" {
			continue
		}
		w.Set = s
		c.wanted[key(s.Name, s.Type)] = e
		all = append(all, w)
	}
	return all, nil
}

// Records returns the records of the provider. Sets with an identifier (weighted, geographic) have no values, so that they
// count as records of others.
func (c *Client) Records(ctx context.Context) (all []plan.Set, err error) {
	if err := c.negotiate(ctx); err != nil {
		return nil, err
	}
	var found []endpoint
	if err := c.do(ctx, http.MethodGet, "records", nil, http.StatusOK, &found); err != nil {
		return nil, err
	}
	if len(found) > MaxRecords {
		return nil, fmt.Errorf("the webhook returns %d records, more than %d [limit the domains of the webhook]", len(found), MaxRecords)
	}
	// Sets with an identifier come last, and replace others.
	slices.SortStableFunc(found, func(a, b endpoint) int { return strings.Compare(a.SetIdentifier, b.SetIdentifier) })
	c.read = map[string]endpoint{}
	sets := map[string]plan.Set{}
	for _, e := range found {
		s := set(e)
		if e.SetIdentifier != "" {
			s.Values = nil
		}
		if c.domain.Match(s.Name) {
			c.read[key(s.Name, s.Type)], sets[key(s.Name, s.Type)] = e, s
		}
	}
	return slices.Collect(maps.Values(sets)), nil
}

// set converts an endpoint.
func set(e endpoint) plan.Set {
	s := plan.Set{Name: strings.ToLower(strings.TrimSuffix(e.DNSName, ".")), Type: e.RecordType, TTL: uint32(min(max(e.RecordTTL, 0), 1<<31-1))}
	for _, t := range e.Targets {
		s.Values = append(s.Values, normal(e.RecordType, t))
	}
	slices.Sort(s.Values)
	return s
}

// normal returns a target as plan.Set has values.
func normal(kind, target string) string {
	switch kind {
	case "A", "AAAA":
		if a, err := netip.ParseAddr(target); err == nil {
			return a.String()
		}
	case "CNAME":
		return strings.ToLower(strings.TrimSuffix(target, "."))
	case "TXT":
		return strings.Trim(target, `"`)
	}
	return target
}

// Domain returns the domains of the provider. It chooses all names before Records.
func (c *Client) Domain() plan.Filter {
	if c.domain == nil {
		return plan.Filter{}
	}
	return *c.domain
}

// negotiate asks for the domains, once.
func (c *Client) negotiate(ctx context.Context) error {
	if c.domain != nil {
		return nil
	}
	var f struct {
		Include, Exclude           []string
		RegexInclude, RegexExclude string
	}
	if err := c.do(ctx, http.MethodGet, "", nil, http.StatusOK, &f); err != nil {
		return err
	}
	d := &plan.Filter{Include: some(f.Include), Exclude: some(f.Exclude)}
	var err error
	if d.Regex, err = compile(f.RegexInclude); err != nil {
		return err
	}
	if d.RegexExcept, err = compile(f.RegexExclude); err != nil {
		return err
	}
	c.domain = d
	return nil
}

// compile compiles an expression; nil: it is empty.
func compile(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("the webhook's domains: %w", err)
	}
	return re, nil
}

// some returns the domains that are not empty.
func some(all []string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return strings.TrimSpace(s) == "" })
}

// do sends a request, and reads the answer into out if it is not nil.
func (c *Client) do(ctx context.Context, method, path string, in any, code int, out any) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode a request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	u := c.base.JoinPath(path)
	r, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	r.Header.Set("Accept", mediaType)
	if in != nil {
		r.Header.Set("Content-Type", mediaType)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return fmt.Errorf("ask the webhook: %w [--webhook-provider-url]", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != code {
		return fmt.Errorf("%s %s: the webhook answers %s [its log says why]", method, u.Redacted(), answer.Status)
	}
	if out == nil {
		return nil
	}
	if have := answer.Header.Get("Content-Type"); strings.ReplaceAll(have, " ", "") != mediaType {
		return fmt.Errorf("%s: the webhook answers with the type %.100q, not %s [is it a webhook of ExternalDNS?]", u.Redacted(), have, mediaType)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, MaxBody+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the webhook's answer: %w", err)
	case len(text) > MaxBody:
		return fmt.Errorf("%s: the webhook's answer has more than %d bytes", u.Redacted(), MaxBody)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s: the webhook's answer: %w", u.Redacted(), err)
	}
	return nil
}

// Apply sends the changes of a plan in one request. The protocol has no conditions: two writers with one owner's ID
// could undo each other's change.
func (c *Client) Apply(ctx context.Context, all []plan.Change) (made int, lost []string, err error) {
	var out changes
	for _, change := range all {
		next := c.wanted[key(change.New.Name, change.New.Type)]
		if change.Action == plan.Delete {
			next = endpoint{}
		} else {
			next.RecordTTL = int64(change.New.TTL)
		}
		c.add(&out, change.Old, next)
		c.add(&out, change.OldTXT, text(change))
	}
	if err := c.do(ctx, http.MethodPost, "records", out, http.StatusNoContent, nil); err != nil {
		return 0, nil, err
	}
	return len(all), nil, nil
}

// add adds the change from the records that were read to the next ones.
func (c *Client) add(out *changes, old plan.Set, next endpoint) {
	read, exists := c.read[key(old.Name, old.Type)]
	switch {
	case !exists && len(next.Targets) > 0:
		out.Create = append(out.Create, next)
	case exists && len(next.Targets) == 0:
		out.Delete = append(out.Delete, read)
	case exists && !(slices.Equal(set(read).Values, set(next).Values) && read.RecordTTL == next.RecordTTL):
		out.UpdateOld, out.UpdateNew = append(out.UpdateOld, read), append(out.UpdateNew, next)
	}
}

// wire returns a set in the protocol's form.
func wire(s plan.Set) endpoint {
	return endpoint{DNSName: s.Name, RecordType: s.Type, RecordTTL: int64(s.TTL), Targets: s.Values}
}

// text returns the TXT records of a change, with quotes as ExternalDNS writes them.
func text(change plan.Change) endpoint {
	e := wire(change.NewTXT)
	e.Targets = nil
	for _, text := range change.NewTXT.Values {
		e.Targets = append(e.Targets, `"`+text+`"`)
	}
	e.Labels = map[string]string{"ownedRecord": change.Set().Name}
	return e
}
