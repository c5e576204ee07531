package names

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/external-dns/endpoint"
	theirplan "sigs.k8s.io/external-dns/plan"
	theirs "sigs.k8s.io/external-dns/provider/rfc2136"
	"sigs.k8s.io/external-dns/registry"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/dns/names/plan"
	"github.com/fairway-net/fairway/internal/dns/names/rfc2136"
	"github.com/fairway-net/fairway/internal/testing/nameserver"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

var managed = []string{"A", "AAAA", "CNAME"}

// A world has a server, and both writers with the same owner.
type world struct {
	t    *testing.T
	n    *testnet.Namespace
	cfg  plan.Config
	ours *rfc2136.Client
	reg  registry.Registry
}

func newWorld(t *testing.T, kind string, r plan.Registry) *world {
	t.Helper()
	r.Owner = "me"
	w := &world{t: t, n: testnet.NewNamespace(t, kind), cfg: plan.Config{Registry: r, Policy: plan.Sync, TTL: 300, RemoveUnlisted: true}}
	if err := w.cfg.Check(); err != nil {
		t.Fatal(err)
	}
	s := nameserver.Start(t, w.n, nameserver.Config{Kind: kind, Zones: []string{"example.org"}, Records: "manual A 192.0.2.7\n"})
	w.ours = rfc2136.New(rfc2136.Config{Server: s.Addr, Zones: []string{"example.org"}, Key: func() (rfc2136.Key, error) {
		return rfc2136.Key{Name: nameserver.KeyName, Algorithm: nameserver.Algorithm, Secret: nameserver.Secret}, nil
	}})
	filter := endpoint.NewDomainFilter([]string{"example.org"})
	p, err := theirs.NewRfc2136Provider([]string{"127.0.0.1"}, 53, []string{"example.org"}, false, nameserver.KeyName, nameserver.Secret, nameserver.Algorithm, true,
		filter, false, 300*time.Second, false, false, "", "", "", 50, theirs.TLSConfig{}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if w.reg, err = registry.NewTXTRegistry(p, r.Prefix, r.Suffix, r.Owner, 0, r.Wildcard, managed, nil, false, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

// sets are what both writers are asked to write.
func sets(addr string) []plan.Set {
	return []plan.Set{
		{Name: "*.apps.example.org", Type: "A", Values: []string{addr}},
		{Name: "alias.example.org", Type: "CNAME", Values: []string{"lb.example.com"}},
		{Name: "www.example.org", Type: "A", Values: []string{addr, "192.0.2.99"}},
		{Name: "www.example.org", Type: "AAAA", Values: []string{"2001:db8::1"}},
	}
}

// sync makes a pass of ours, and returns the plan.
func (w *world) sync(wants []plan.Set) (p plan.Plan) {
	w.t.Helper()
	w.do(func(ctx context.Context) error {
		existing, err := w.ours.Records(ctx)
		if err != nil {
			return err
		}
		in := plan.Input{Existing: existing, Zones: w.ours.Zones(), Names: len(wants)}
		for _, s := range wants {
			in.Wants = append(in.Wants, plan.Want{Set: s, By: names.Ref{Kind: "Service", Namespace: "prod", Name: "web"}})
		}
		p = plan.New(w.cfg, in)
		made, lost, err := w.ours.Apply(ctx, p.Changes)
		if err == nil && (made != len(p.Changes) || len(lost) > 0) {
			err = fmt.Errorf("%d of %d changes made, lost %v", made, len(p.Changes), lost)
		}
		return err
	})
	return p
}

// syncTheirs makes a pass of ExternalDNS, and returns its changes.
func (w *world) syncTheirs(wants []plan.Set) (c *theirplan.Changes) {
	w.t.Helper()
	w.do(func(ctx context.Context) error {
		current, err := w.reg.Records(ctx)
		if err != nil {
			return err
		}
		var desired []*endpoint.Endpoint
		for _, s := range wants {
			e := endpoint.NewEndpoint(s.Name, s.Type, s.Values...)
			e.Labels[endpoint.ResourceLabelKey] = "service/prod/web"
			desired = append(desired, e)
		}
		c = (&theirplan.Plan{Policies: []theirplan.Policy{&theirplan.SyncPolicy{}}, Current: current, Desired: desired, ManagedRecords: managed, OwnerID: w.reg.OwnerID()}).Calculate().Changes
		if !c.HasChanges() {
			return nil
		}
		return w.reg.ApplyChanges(ctx, c)
	})
	return c
}

func (w *world) do(f func(context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	if err := w.n.Do(func() error { return f(ctx) }); err != nil {
		w.t.Fatal(err)
	}
}

// text returns the server's records, sorted.
func (w *world) text() string {
	w.t.Helper()
	var lines []string
	w.do(func(ctx context.Context) error {
		existing, err := w.ours.Records(ctx)
		for _, s := range existing {
			if slices.Contains(managed, s.Type) || s.Type == "TXT" {
				lines = append(lines, s.String())
			}
		}
		return err
	})
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestExternalDNS: what one of both has written is the other's: it changes nothing, then changes it, then removes it, and
// both write the same records.
func TestExternalDNS(t *testing.T) {
	for name, r := range map[string]plan.Registry{
		"plain": {}, "prefix": {Prefix: "own."}, "suffix": {Suffix: "-own"}, "type in prefix": {Prefix: "x-%{record_type}-"}, "type in suffix": {Suffix: "-%{record_type}"}, "wildcard": {Wildcard: "any"},
	} {
		for _, kind := range nameserver.Kinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				w := newWorld(t, kind, r)
				before := w.text()
				if p := w.sync(sets("192.0.2.1")); len(p.Changes) != 4 {
					t.Fatalf("ours: %v", p.Changes)
				}
				written := w.text()
				if c := w.syncTheirs(sets("192.0.2.1")); c.HasChanges() {
					t.Errorf("ExternalDNS changes what is ours: %+v", c)
				}
				if c := w.syncTheirs(sets("192.0.2.2")); len(c.UpdateNew) != 2 || len(c.Create)+len(c.Delete) != 0 {
					t.Errorf("ExternalDNS follows with %+v", c)
				}
				if p := w.sync(sets("192.0.2.2")); len(p.Changes) != 0 || p.Owned != 4 {
					t.Errorf("ours, after ExternalDNS: %v, %d owned", p.Changes, p.Owned)
				}
				if c := w.syncTheirs(nil); len(c.Delete) != 4 || w.text() != before {
					t.Errorf("ExternalDNS removes %+v, left:\n%s", c.Delete, w.text())
				}
				if w.syncTheirs(sets("192.0.2.1")); w.text() != written {
					t.Errorf("ExternalDNS writes\n%s\nand ours\n%s", w.text(), written)
				}
				if p := w.sync(sets("192.0.2.1")); len(p.Changes) != 0 || p.Owned != 4 {
					t.Errorf("ours changes what is ExternalDNS's: %v, %d owned", p.Changes, p.Owned)
				}
				if p := w.sync(nil); len(p.Changes) != 4 || w.text() != before {
					t.Errorf("ours removes %v, left:\n%s", p.Changes, w.text())
				}
			})
		}
	}
}
