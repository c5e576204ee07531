package names

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/dns/names/plan"
	"github.com/fairway-net/fairway/internal/dns/names/rfc2136"
	"github.com/fairway-net/fairway/internal/kube"
	kubenames "github.com/fairway-net/fairway/internal/kube/names"
)

// A provider reads and writes the records of a DNS server.
type provider interface {
	// Zones returns the zones of the server; empty: unknown.
	Zones() []string
	// Adjust returns wants in the form that the server takes, without those that it does not take.
	Adjust(context.Context, []plan.Want) ([]plan.Want, error)
	// Domain returns the names that the server takes. It is complete after Adjust.
	Domain() plan.Filter
	// Records returns the records, of all types or at least of plan.Types and TXT.
	Records(context.Context) ([]plan.Set, error)
	// Apply carries out changes of a plan for these records. It returns the number of changes made, and the names that
	// it left because their records are others by now.
	Apply(context.Context, []plan.Change) (made int, lost []string, err error)
}

func (o *options) newProvider() provider {
	if o.provider == providerWebhook {
		return o.webhook
	}
	return rfc2136.New(rfc2136.Config{Server: net.JoinHostPort(o.host, strconv.Itoa(int(o.port))), Zones: o.zones, Key: o.key})
}

// emptyAfter is how long the API server must report that most objects are gone.
const emptyAfter = time.Minute

// readTimeout limits one look at the cluster.
const readTimeout = time.Minute

// A syncer keeps the names of a cluster on a server.
type syncer struct {
	log      *slog.Logger
	cfg      plan.Config
	provider provider
	sources  *kubenames.Sources
	problems *kubenames.Problems // nil: no events
	out      io.Writer           // gets each change; nil: the log does
	dryRun   bool
	metrics  *Metrics
	told     string // the last line about held names in the log
	dry      string // the last plan of a dry run in the log
}

// runOnce makes one pass, and prints it.
func (o *options) runOnce(ctx context.Context, e command.Env, log *slog.Logger) error {
	client, custom, err := kube.ConnectBoth(o.connection)
	if err != nil {
		return err
	}
	store := kube.New(kube.Config{Log: slog.New(slog.DiscardHandler), Client: client, Custom: custom}) // ReadOnce returns what matters
	s := &syncer{log: log, cfg: o.plan, provider: o.newProvider(), sources: kubenames.SubscribeSources(store, "names", o.sources), out: e.Stdout, dryRun: o.dryRun, metrics: NewMetrics()}
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := store.ReadOnce(reading, s.sources.Synced(), "see --kubeconfig, and the rights of the account"); err != nil {
		return err
	}
	_, err = s.pass(ctx)
	return err
}

// run keeps the names until ctx ends. Of several processes one works.
func (o *options) run(ctx context.Context, e command.Env, log *slog.Logger) error {
	client, custom, err := kube.ConnectBoth(o.connection)
	if err != nil {
		return err
	}
	log.Info("starting", "version", e.Version, "identity", o.identity, "provider", o.provider, "policy", o.plan.Policy, "owner", o.plan.Owner)
	standing, m := &kube.Standing{}, NewMetrics()
	g, ctx := errgroup.WithContext(ctx)
	if o.metrics != "" {
		registry := command.NewRegistry(m)
		g.Go(func() error {
			return command.Serve(ctx, o.metrics, "--metrics-bind-address", registry, command.Checks{"/healthz": standing.Live, "/readyz": standing.Ready})
		})
	}
	election := kube.Election{Standing: standing, Log: log, Client: client, Namespace: o.lease(), Name: "fairway-names", Identity: o.identity}
	g.Go(func() error {
		return kube.Elect(ctx, election, func(ctx context.Context) error {
			events := kube.NewRecorder(log, client, o.identity)
			store := kube.New(kube.Config{Log: log, Client: client, Custom: custom, EmptyAfter: emptyAfter})
			s := &syncer{log: log, cfg: o.plan, provider: o.newProvider(), sources: kubenames.SubscribeSources(store, "names", o.sources),
				problems: kubenames.NewProblems(events), dryRun: o.dryRun, metrics: m}
			g, ctx := errgroup.WithContext(ctx)
			g.Go(func() error { return events.Run(ctx) })
			g.Go(func() error { return store.Run(ctx) })
			g.Go(func() error { return s.follow(ctx, o.interval, o.minimum) })
			return g.Wait()
		})
	})
	return g.Wait()
}

// follow makes a pass after each change of the cluster, and at least at each interval, until ctx ends.
func (s *syncer) follow(ctx context.Context, interval, minimum time.Duration) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.sources.Synced():
	}
	for {
		s.sources.Take()
		again, err := s.pass(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.metrics.errors.Inc()
			s.log.Error("the names are not synchronized; the next try follows", "in", interval, "err", err)
		}
		if !s.wait(ctx, interval, minimum, err != nil, again) {
			return nil
		}
	}
}

// wait waits for the next pass; false: ctx has ended. After an error it waits for the whole interval, and after a change
// of the server's records by another writer only for the minimum.
func (s *syncer) wait(ctx context.Context, interval, minimum time.Duration, failed, again bool) bool {
	at := time.NewTimer(interval)
	defer at.Stop()
	pause := time.NewTimer(minimum)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-pause.C:
	}
	if again && !failed {
		return true
	}
	changed := s.sources.Dirty()
	if failed {
		changed = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-at.C:
	}
	return true
}

// pass compares the cluster with the server, and carries out the plan. again says that another writer was faster.
func (s *syncer) pass(ctx context.Context) (again bool, err error) {
	c, listed := s.sources.Cluster(), s.sources.Listed()
	claims, problems := names.Claims(c, nil)
	entries, taken := names.Decide(claims)
	wanted := plan.Wants(entries)
	wants, err := s.provider.Adjust(ctx, wanted)
	if err != nil {
		return false, err
	}
	existing, err := s.provider.Records(ctx)
	if err != nil {
		return false, err
	}
	cfg := s.cfg
	cfg.Domains = append(cfg.Domains[:len(cfg.Domains):len(cfg.Domains)], s.provider.Domain())
	p := plan.New(cfg, plan.Input{Wants: wants, Existing: existing, Zones: s.provider.Zones(), Listed: listed, Names: len(wanted)})
	s.metrics.set(p)
	s.report(c, append(append(problems, taken...), skipped(p)...))
	s.tellHeld(p)
	s.tell(p)
	if len(p.Changes) == 0 || s.dryRun {
		s.metrics.done()
		return false, nil
	}
	made, lost, err := s.provider.Apply(ctx, p.Changes)
	s.metrics.changes.Add(float64(made))
	if len(lost) > 0 {
		s.log.Warn("another writer has changed records meanwhile; they are read again", "names", len(lost), "first", lost[0])
	}
	if err != nil {
		return false, fmt.Errorf("%d of %d changes are made: %w", made, len(p.Changes), err)
	}
	if s.out != nil && len(lost) > 0 {
		return true, errors.New("another writer has changed records meanwhile [run the command again]")
	}
	if len(lost) == 0 {
		s.metrics.done()
	}
	return len(lost) > 0, nil
}

// skipped returns the names that are not written, as problems of their objects.
func skipped(p plan.Plan) (all []names.Problem) {
	for _, one := range p.Skipped {
		all = append(all, names.Problem{About: one.By, Reason: plan.ReasonNotWritten, Message: fmt.Sprintf("%s %s is not written to the DNS server: %s", one.Name, one.Type, one.Why)})
	}
	return all
}

// report tells the owners of objects, or whoever runs the command once.
func (s *syncer) report(c names.Cluster, problems []names.Problem) {
	if s.problems != nil {
		s.problems.Report(c, problems)
		return
	}
	for _, p := range problems {
		if p.Reason != plan.ReasonNotWritten { // the plan has a line about it
			fmt.Fprintf(s.out, "note: %v: %s\n", p.About, p.Message)
		}
	}
}

// maxLines is the number of changes of a pass that the log has.
const maxLines = 100

// tell prints or logs a plan.
func (s *syncer) tell(p plan.Plan) {
	if s.out != nil {
		p.WriteTo(s.out)
		return
	}
	what := "change"
	if s.dryRun {
		what = "change that a run without --dry-run would make"
		last := s.dry
		if s.dry = fmt.Sprint(p.Changes); s.dry == last {
			return
		}
	}
	for i, c := range p.Changes {
		if i == maxLines {
			s.log.Info("further changes", "number", len(p.Changes)-i)
			break
		}
		s.log.Info(what, "action", c.Action, "record", c.Set().String(), "why", c.Why)
	}
}

// tellHeld logs, once, that names stay although no object has them.
func (s *syncer) tellHeld(p plan.Plan) {
	line := ""
	if len(p.Held) > 0 {
		line = fmt.Sprintf("%d records stay that no object has, as %s: the cluster shows no name, or does not list their kind of object [--remove-unlisted removes them]", len(p.Held), p.Held[0])
	}
	if line != s.told && line != "" && s.out == nil {
		s.log.Warn(line)
	}
	s.told = line
}
