// Package gateway is the command `fairway gateway`: it serves Gateway API and Ingress. It wires the parts.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/gateway/server"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kube"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// options are the flags of `fairway gateway`.
type options struct {
	connection         kube.Connection
	namespace          string // of the bind ports
	node, zone         string
	metrics            string // listen address; empty: no server
	defaultCertificate string
	sessionKeyFile     string
	accessLog          bool
	server             server.Config
}

// New builds `fairway gateway`.
func New(e command.Env) *cobra.Command {
	var o options
	var format *command.LogFormat
	var trusted func() ([]netip.Prefix, error)
	c := &cobra.Command{
		Use:   "gateway",
		Short: "Serve Gateway API and Ingress: HTTP, gRPC and TLS from outside to the cluster's Services",
		Long: `Serve the Gateways of GatewayClasses with the controller fairway.net/gateway, and the Ingresses of
IngressClasses with the controller fairway.net/ingress. Each port of each Gateway is served on a
port of its own, from 20000, which fairway controller --gateway allocates. It also makes the
Services that lead clients here, and writes all statuses. Ingresses are served on ports 8080 and
8443. The program needs no privilege (docs/gateway.md).`,
		Example: `  fairway gateway --kubeconfig ~/.kube/config --access-log`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := format.Logger(e.Stderr, "gateway")
			if err != nil {
				return err
			}
			if o.server.TrustedProxies, err = trusted(); err != nil {
				return err
			}
			o.server.Log = log
			if o.accessLog {
				o.server.LogRequests = true
			}
			o.server.AccessLog = slog.New(slog.NewJSONHandler(e.Stdout, nil))
			return o.run(c.Context(), log, e.Version)
		},
	}
	format = command.NewLogFormat(c)
	command.AddSettings(c, settings.Gateway)
	usage := func(flag string) string { return settings.Usage(settings.Gateway, flag) }
	f := c.Flags()
	command.AddPodConnection(e, "gateway", f, &o.connection)
	f.StringVar(&o.namespace, "controller-namespace", "kube-system", "The `namespace` of fairway controller, which keeps the bind ports there")
	f.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "The `name` of the node, for Services with topology (default $NODE_NAME)")
	f.StringVar(&o.zone, "zone", os.Getenv("ZONE"), "The `zone` of the node, for Services with topology (default $ZONE)")
	f.StringVar(&o.defaultCertificate, "default-certificate", "", usage("default-certificate"))
	f.StringVar(&o.sessionKeyFile, "session-key-file", "", "A `file` with the key that signs session cookies; all gateways need the same (default a random key)")
	f.BoolVar(&o.accessLog, "access-log", false, usage("access-log"))
	trusted = command.AddPrefixes(f, "trusted-proxies", "GATEWAY_TRUSTED_PROXIES", usage("trusted-proxies"))
	f.BoolVar(&o.server.ProxyProtocol, "proxy-protocol", false, usage("proxy-protocol"))
	f.IntVar(&o.server.MaxConns, "max-connections", 50_000, usage("max-connections"))
	f.DurationVar(&o.server.DrainDelay, "drain-delay", 5*time.Second, "How long new connections are accepted after the signal to end, a `duration`")
	f.DurationVar(&o.server.DrainTimeout, "drain-timeout", 30*time.Second, "How long requests may take after that, a `duration`")
	f.StringVar(&o.metrics, "metrics-bind-address", ":"+strconv.Itoa(numbers.PortGatewayMetrics), "The `address` of /metrics, /healthz and /readyz; empty: none")
	o.connection.QPS, o.connection.Burst = 100, 1000 // a start reads each certificate by name
	return c
}

// settings returns the compiler's settings.
func (o options) settings() (gateway.Settings, error) {
	s := gateway.Settings{Controller: kubegateway.ControllerName}
	if o.defaultCertificate == "" {
		return s, nil
	}
	name, err := api.ParseName(o.defaultCertificate)
	if err != nil {
		return s, fmt.Errorf("--default-certificate %q is not NAMESPACE/NAME", o.defaultCertificate)
	}
	s.DefaultCertificate = name
	return s, nil
}

// run serves until ctx ends, and then until the server has ended its requests. The table follows the cluster until then.
func (o options) run(ctx context.Context, log *slog.Logger, version string) error {
	settings, err := o.settings()
	if err != nil {
		return err
	}
	if o.sessionKeyFile != "" {
		if o.server.SessionKey, err = os.ReadFile(o.sessionKeyFile); err != nil {
			return fmt.Errorf("read the key of session cookies: %w [--session-key-file]", err)
		}
	}
	client, custom, err := kube.ConnectBoth(o.connection)
	if err != nil {
		return err
	}
	srv, err := server.New(o.server)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version, "node", o.node, "zone", o.zone)
	store := kube.New(kube.Config{Log: log, Client: client, Custom: custom, NodeName: o.node, EmptyAfter: emptyAfter})
	f := &follower{log: log, objects: kubegateway.Subscribe(store, "gateway", kubegateway.Config{Namespace: o.namespace}),
		compiler: gateway.NewCompiler(settings), server: srv, apply: srv.Apply}
	f.facts.Name, f.facts.Zone = o.node, o.zone

	g, ctx := errgroup.WithContext(ctx)
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { defer stop(); return srv.Run(ctx) })
	g.Go(func() error { return store.Run(following) })
	g.Go(func() error { return f.objects.Run(following) })
	g.Go(func() error { return f.run(following) })
	if o.metrics != "" {
		registry := command.NewRegistry(store, srv)
		g.Go(func() error {
			return command.Serve(following, o.metrics, "--metrics-bind-address", registry,
				command.Checks{"/healthz": func() error { return nil }, "/readyz": srv.Ready})
		})
	}
	return g.Wait()
}

// emptyAfter is how long the API server must report that most objects are gone.
const emptyAfter = time.Minute
