// Package names is `fairway names`: names of the cluster on DNS servers outside. It wires the parts.
package names

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/dns/names/plan"
	"github.com/fairway-net/fairway/internal/dns/names/rfc2136"
	"github.com/fairway-net/fairway/internal/dns/names/webhook"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kube"
	kubenames "github.com/fairway-net/fairway/internal/kube/names"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// New builds `fairway names`.
func New(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "names",
		Short: "Write the cluster's names to DNS servers outside",
		Long: `Write the cluster's names to DNS servers outside. fairway dns --zone answers for them itself
(docs/names.md).`,
		Example: `  fairway names sync --once --dry-run --txt-owner-id prod --rfc2136-host ns1.example.org --rfc2136-zone example.org --rfc2136-insecure`,
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newSync(e))
	return c
}

// The providers.
const (
	providerRFC2136 = "rfc2136"
	providerWebhook = "webhook"
)

var providers = []string{providerRFC2136, providerWebhook}

// options are the flags of `fairway names sync`.
type options struct {
	connection          kube.Connection
	sources             []string
	provider            string
	domains, exclude    []string
	ttl                 time.Duration
	interval, minimum   time.Duration
	once, dryRun        bool
	host                string
	port                uint16
	zones               []string
	keyName, secretFile string
	algorithm           string
	insecure            bool
	webhookURL          string
	webhook             *webhook.Client
	namespace, identity string
	metrics             string // listen address; empty: no server

	plan plan.Config
}

// newSync builds `fairway names sync`.
func newSync(e command.Env) *cobra.Command {
	var o options
	var format *command.LogFormat
	c := &cobra.Command{
		Use:   "sync",
		Short: "Keep the names of Services, Ingresses and routes on a DNS server outside, as ExternalDNS does",
		Long: `Keep the names of Services, Ingresses and routes on a DNS server outside the cluster. Sources,
annotations, flags and the TXT records of owners are ExternalDNS's, so that either program can take
over from the other (docs/names-sync.md).

A record of another owner, or of nobody, is never changed or removed. With the default policy
upsert-only no name is removed. With sync a name is removed when no object has it any more, unless
the cluster shows no name at all, or does not list the kind of object: --remove-unlisted removes
these, too.`,
		Example: `  fairway names sync --once --dry-run --txt-owner-id prod --rfc2136-host ns1.example.org --rfc2136-zone example.org \
    --rfc2136-tsig-keyname fairway --rfc2136-tsig-secret-file secret
  fairway names sync --policy sync --txt-owner-id prod --rfc2136-host 192.0.2.53 --rfc2136-zone example.org --rfc2136-insecure`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := format.Logger(e.Stderr, "names")
			if err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			if o.once {
				return o.runOnce(c.Context(), e, log)
			}
			if err := command.OrHostname(&o.identity, "--identity"); err != nil {
				return err
			}
			return o.run(c.Context(), e, log)
		},
	}
	format = command.NewLogFormat(c)
	command.AddSettings(c, settings.Names)
	o.addFlags(e, c.Flags())
	command.Complete(c, "policy", plan.Sync, plan.UpsertOnly)
	command.Complete(c, "provider", providers...)
	command.Complete(c, "source", kubenames.SourceNames...)
	return c
}

func (o *options) addFlags(e command.Env, f *pflag.FlagSet) {
	usage := func(flag string) string { return settings.Usage(settings.Names, flag) }
	command.AddConnection(e, f, &o.connection)
	o.connection.UserAgent = e.UserAgent("names")
	f.StringSliceVar(&o.sources, "source", nil, usage("source"))
	f.StringVar(&o.provider, "provider", providerRFC2136, usage("provider"))
	f.StringVar(&o.plan.Policy, "policy", plan.UpsertOnly, usage("policy"))
	f.StringSliceVar(&o.domains, "domain-filter", nil, usage("domain-filter"))
	f.StringSliceVar(&o.exclude, "exclude-domains", nil, usage("exclude-domains"))
	f.StringVar(&o.plan.Owner, "txt-owner-id", "", usage("txt-owner-id"))
	f.StringVar(&o.plan.Prefix, "txt-prefix", "", usage("txt-prefix"))
	f.StringVar(&o.plan.Suffix, "txt-suffix", "", usage("txt-suffix"))
	f.StringVar(&o.plan.Wildcard, "txt-wildcard-replacement", "", usage("txt-wildcard-replacement"))
	f.DurationVar(&o.ttl, "default-ttl", 5*time.Minute, usage("default-ttl"))
	f.DurationVar(&o.interval, "interval", time.Minute, usage("interval"))
	f.DurationVar(&o.minimum, "min-event-sync-interval", 5*time.Second, usage("min-event-sync-interval"))
	f.BoolVar(&o.plan.RemoveUnlisted, "remove-unlisted", false, usage("remove-unlisted"))
	f.BoolVar(&o.dryRun, "dry-run", false, usage("dry-run"))
	f.BoolVar(&o.once, "once", false, "Compare once, print the changes, and end")
	f.StringVar(&o.host, "rfc2136-host", "", usage("rfc2136-host"))
	f.Uint16Var(&o.port, "rfc2136-port", numbers.PortDNS, usage("rfc2136-port"))
	f.StringSliceVar(&o.zones, "rfc2136-zone", nil, usage("rfc2136-zone"))
	f.StringVar(&o.keyName, "rfc2136-tsig-keyname", "", usage("rfc2136-tsig-keyname"))
	f.StringVar(&o.algorithm, "rfc2136-tsig-secret-alg", "hmac-sha256", usage("rfc2136-tsig-secret-alg"))
	f.StringVar(&o.secretFile, "rfc2136-tsig-secret-file", "", "A `file` with the secret of the TSIG key, in base64; it is read for each connection")
	f.BoolVar(&o.insecure, "rfc2136-insecure", false, usage("rfc2136-insecure"))
	f.StringVar(&o.webhookURL, "webhook-provider-url", "http://localhost:8888", usage("webhook-provider-url"))
	f.StringVar(&o.namespace, "lease-namespace", "kube-system", "The `namespace` of the Lease fairway-names")
	f.StringVar(&o.identity, "identity", "", "The `name` of this process, as no other one has it (default the host's name)")
	f.StringVar(&o.metrics, "metrics-bind-address", "", "The `address` of /metrics, /healthz and /readyz; empty: none")
}

// check completes the options, or says what is wrong with them.
func (o *options) check() error {
	if len(o.sources) == 0 {
		o.sources = kubenames.SourceNames
	}
	if err := kubenames.CheckSources(o.sources); err != nil {
		return err
	}
	switch {
	case o.plan.Policy != plan.Sync && o.plan.Policy != plan.UpsertOnly:
		return fmt.Errorf("--policy %q is unknown [choose sync or upsert-only]", o.plan.Policy)
	case o.ttl < time.Second || o.ttl > 24*time.Hour:
		return fmt.Errorf("--default-ttl %s is not between 1s and 24h", o.ttl)
	case o.interval < time.Second || o.minimum < time.Second:
		return errors.New("--interval and --min-event-sync-interval must be 1s or more")
	}
	if err := o.plan.Check(); err != nil {
		return err
	}
	o.plan.TTL = uint32(o.ttl.Seconds())
	if len(o.domains)+len(o.exclude) > 0 {
		o.plan.Domains = []plan.Filter{{Include: o.domains, Exclude: o.exclude}}
	}
	if !slices.Contains(providers, o.provider) {
		return fmt.Errorf("--provider %q is unknown [choose one of %s]", o.provider, strings.Join(providers, ", "))
	}
	if o.provider == providerWebhook {
		var err error
		o.webhook, err = webhook.New(o.webhookURL)
		return err
	}
	return o.checkRFC2136()
}

// checkRFC2136 checks the flags of the provider rfc2136.
func (o *options) checkRFC2136() error {
	switch {
	case o.host == "":
		return errors.New("--rfc2136-host is missing [name the primary nameserver of the zones]")
	case len(o.zones) == 0:
		return errors.New("--rfc2136-zone is missing [name the zones, as example.org]")
	case o.insecure && o.keyName != "":
		return errors.New("--rfc2136-insecure and --rfc2136-tsig-keyname exclude each other")
	case !o.insecure && (o.keyName == "" || o.secretFile == ""):
		return errors.New("--rfc2136-tsig-keyname and --rfc2136-tsig-secret-file are missing [or give --rfc2136-insecure: the messages are not signed then]")
	case rfc2136.Algorithms[o.algorithm] == "":
		return fmt.Errorf("--rfc2136-tsig-secret-alg %q is unknown [as hmac-sha256]", o.algorithm)
	}
	for i, zone := range o.zones {
		name, ok := names.Hostname(zone)
		if !ok || strings.HasPrefix(name, "*.") {
			return fmt.Errorf("--rfc2136-zone: %q is no zone [write one as example.org]", zone)
		}
		o.zones[i] = name
	}
	return nil
}

// key reads the TSIG key.
func (o *options) key() (rfc2136.Key, error) {
	if o.insecure {
		return rfc2136.Key{}, nil
	}
	text, err := os.ReadFile(o.secretFile)
	if err != nil {
		return rfc2136.Key{}, fmt.Errorf("read the TSIG secret: %w [--rfc2136-tsig-secret-file]", err)
	}
	return rfc2136.Key{Name: o.keyName, Algorithm: o.algorithm, Secret: strings.TrimSpace(string(text))}, nil
}

// lease returns the namespace of the Lease.
func (o *options) lease() string { return cmp.Or(o.namespace, "kube-system") }
