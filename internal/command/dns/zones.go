package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/dns"
	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kube"
	kubenames "github.com/fairway-net/fairway/internal/kube/names"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// zoneOptions are the flags for names outside the cluster.
type zoneOptions struct {
	zones, nameservers, transferTo []string
	port                           uint16
	ttl                            time.Duration

	cfg names.Config
}

func (o *zoneOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.zones, "zone", nil, settings.Usage(settings.DNS, "zone"))
	f.StringSliceVar(&o.nameservers, "zone-nameserver", nil, settings.Usage(settings.DNS, "zone-nameserver")+" (default fairway-dns-zones.kube-system)")
	f.DurationVar(&o.ttl, "zone-ttl", time.Minute, settings.Usage(settings.DNS, "zone-ttl"))
	f.StringSliceVar(&o.transferTo, "zone-transfer-to", nil, settings.Usage(settings.DNS, "zone-transfer-to"))
	f.Uint16Var(&o.port, "zone-port", numbers.PortDNSZones, "`port` that answers for the zones, and for nothing else")
}

// check reads the flags into cfg.
func (o *zoneOptions) check(cfg *dns.Config) error {
	if len(o.nameservers) == 0 {
		o.nameservers = []string{"fairway-dns-zones.kube-system"}
	}
	if o.ttl < time.Second || o.ttl > 24*time.Hour {
		return fmt.Errorf("--zone-ttl %s is not between 1s and 24h", o.ttl)
	}
	o.cfg.TTL = uint32(o.ttl.Seconds())
	for _, flag := range []struct {
		name  string
		texts []string
		out   *[]string
	}{{"--zone", o.zones, &o.cfg.Zones}, {"--zone-nameserver", o.nameservers, &o.cfg.Nameservers}} {
		for _, text := range flag.texts {
			name, ok := names.Hostname(text)
			if !ok || strings.HasPrefix(name, "*.") {
				return fmt.Errorf("%s: %q is no name [write one as example.org]", flag.name, text)
			}
			*flag.out = append(*flag.out, name)
		}
	}
	for _, text := range o.transferTo {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("--zone-transfer-to: %w [write addresses of secondaries, as 192.0.2.54]", err)
		}
		cfg.ZoneTransferTo = append(cfg.ZoneTransferTo, a)
	}
	cfg.Zones, cfg.ZonePort = o.cfg.Zones, o.port
	return nil
}

// emptyAfter is how long the API server must report that most objects are gone.
const emptyAfter = time.Minute

// run serves until ctx ends. The objects of the zones are followed until the server has ended.
func (o *zoneOptions) run(ctx context.Context, e command.Env, cfg dns.Config) error {
	if len(cfg.Zones) == 0 {
		return dns.New(cfg).Run(ctx)
	}
	connection := kube.Connection{Kubeconfig: cfg.Kubeconfig, Master: cfg.Master, UserAgent: e.UserAgent("dns")}
	client, custom, err := kube.ConnectBoth(connection)
	if err != nil {
		return err
	}
	store := kube.New(kube.Config{Log: cfg.Log, Client: client, Custom: custom, EmptyAfter: emptyAfter})
	z := &zoneTable{log: cfg.Log, cfg: o.cfg, objects: kubenames.Subscribe(store, "zones"), events: kube.NewRecorder(cfg.Log, client, "")}
	cfg.Names = z.now.Load

	g, ctx := errgroup.WithContext(ctx)
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { defer stop(); return dns.New(cfg).Run(ctx) })
	g.Go(func() error { return store.Run(following) })
	g.Go(func() error { return z.objects.Decide(following, z.events, z.pass(following)) })
	return g.Wait()
}

// A zoneTable keeps the table of the zones.
type zoneTable struct {
	log     *slog.Logger
	cfg     names.Config
	objects *kubenames.Objects
	events  *kube.Recorder
	now     atomic.Pointer[names.Table]
}

// pause is the time between two tables: a burst of changes becomes one.
const pause = 200 * time.Millisecond

// pass makes the table after each change.
func (z *zoneTable) pass(ctx context.Context) func([]api.Name) {
	reports := kubenames.NewProblems(z.events)
	return func([]api.Name) {
		c, last := z.objects.Cluster(), z.now.Load()
		next, problems := names.New(c, z.cfg, last, uint32(time.Now().Unix()))
		z.now.Store(next)
		if last == nil {
			z.log.Info("answering for names outside the cluster", "zones", z.cfg.Zones, "names", next.Len())
		}
		reports.Report(c, problems)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
