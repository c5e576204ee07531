package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/ingress"
)

// readTimeout bounds the requests to the API server.
const readTimeout = 30 * time.Second

// An ingressSource is where the Ingresses come from.
type ingressSource struct {
	connection             kube.Connection
	namespace, class, file string
}

func (s *ingressSource) addFlags(e command.Env, c *cobra.Command) {
	f := c.Flags()
	command.AddConnection(e, f, &s.connection)
	f.StringVarP(&s.namespace, "namespace", "n", "", "Only Ingresses of this `namespace` (default all)")
	f.StringVar(&s.class, "class", "nginx", "The `name` of their class")
	f.StringVarP(&s.file, "filename", "f", "", "Read objects from a `file` and not from a cluster, whatever their class; - is the standard input")
}

// read reads the Ingresses.
func (s *ingressSource) read(ctx context.Context, e command.Env) (ingress.Input, error) {
	switch s.file {
	case "":
	case "-":
		return ingress.Parse(e.Stdin)
	default:
		f, err := os.Open(s.file)
		if err != nil {
			return ingress.Input{}, err
		}
		defer f.Close()
		return ingress.Parse(f)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	client, err := kube.Connect(s.connection)
	if err != nil {
		return ingress.Input{}, err
	}
	return ingress.Read(ctx, client, s.namespace, s.class)
}

// NewIngress builds `fairway ingress`.
func NewIngress(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "ingress",
		Short: "Lead from ingress-nginx to Gateway API",
		Example: `  fairway ingress migrate > gateway.yaml
  fairway ingress check --old 192.0.2.10 --new 192.0.2.20`,
		Args: cobra.NoArgs,
	}
	c.AddCommand(newMigrate(e), newCheck(e))
	return c
}

func newMigrate(e command.Env) *cobra.Command {
	var source ingressSource
	var gateway, class string
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Print Ingresses as objects of Gateway API, and what has no equivalent",
		Long: `Print the Ingresses of ingress-nginx as objects of Gateway API, and as comments what has
no equivalent. It changes nothing. All Ingresses share one Gateway, as they shared the
controller's address. Each namespace with TLS gets a ListenerSet next to its Secrets.
  lost      nothing does this: look at it before the switch
  differs   it is done in another way
  needless  a gateway does it anyhow
With a cluster it needs the rights to list Ingresses, and to get IngressClasses, Services and
ConfigMaps.`,
		Example: `  fairway ingress migrate > gateway.yaml
  helm template shop | fairway ingress migrate -f -`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			in, err := source.read(c.Context(), e)
			if err != nil {
				return err
			}
			if in.Gateway, err = api.ParseName(gateway); err != nil {
				return fmt.Errorf("--gateway: %q does not name a Gateway [write NAMESPACE/NAME]", gateway)
			}
			in.Class = class
			return ingress.Migrate(in).Print(e.Stdout)
		},
	}
	source.addFlags(e, c)
	f := c.Flags()
	f.StringVar(&gateway, "gateway", "default/ingress", "The `NAMESPACE/NAME` of the Gateway to print")
	f.StringVar(&class, "gateway-class", "fairway", "The `name` of its GatewayClass")
	return c
}

func newCheck(e command.Env) *cobra.Command {
	var source ingressSource
	var old, now string
	format := output.Table
	c := &cobra.Command{
		Use:   "check",
		Short: "Send the same requests to two controllers, and print each difference",
		Long: `Send the same requests to two controllers, and print each difference in status,
certificate, headers that matter, names of cookies, and body. The requests are made from the
Ingresses: each host and path, and the paths at their boundaries. They are GET, without a body
and without cookies.

Exit status: 0 if both answer alike, 1 if there is a difference, 2 if that could not be found out.`,
		Example: `  fairway ingress check --old 192.0.2.10 --new 192.0.2.20
  fairway ingress check --old 127.0.0.1:8080,8443 --new 127.0.0.1:9080,9443 -n shop`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			oldOne, err := parseController("old", old)
			if err != nil {
				return err
			}
			newOne, err := parseController("new", now)
			if err != nil {
				return err
			}
			in, err := source.read(c.Context(), e)
			if err != nil {
				return err
			}
			if len(in.Ingresses) == 0 {
				return fmt.Errorf("there is no Ingress of this class [see kubectl get ingress -A; --class NAME]")
			}
			report, err := ingress.Compare(c.Context(), oldOne, newOne, ingress.Requests(in.Ingresses))
			if err != nil {
				return err
			}
			if err := output.Write(e.Stdout, format, report); err != nil || len(report.Differences) == 0 {
				return err
			}
			return command.ExitError(1)
		},
	}
	c.RunE = command.ErrorStatus(2, c.RunE)
	source.addFlags(e, c)
	f := c.Flags()
	f.StringVar(&old, "old", "", "`address` of the old controller, with ports as in 192.0.2.1:8080,8443 (default 80,443)")
	f.StringVar(&now, "new", "", "`address` of the new controller")
	f.VarP(&format, "output", "o", "table, wide, json or yaml")
	return c
}

// parseController reads ADDRESS, ADDRESS:PORT or ADDRESS:PORT,TLSPORT.
func parseController(flag, value string) (ingress.Address, error) {
	wrong := fmt.Errorf("--%s: %q is not an address [write 192.0.2.1 or 192.0.2.1:8080,8443]", flag, value)
	a := ingress.Address{HTTP: 80, TLS: 443}
	if addr, err := netip.ParseAddr(value); err == nil {
		a.Addr = addr
		return a, nil
	}
	first, secure, two := strings.Cut(value, ",")
	p, err := netip.ParseAddrPort(first)
	if err != nil {
		return a, wrong
	}
	a.Addr, a.HTTP = p.Addr(), p.Port()
	if two {
		port, err := strconv.ParseUint(secure, 10, 16)
		if err != nil {
			return a, wrong
		}
		a.TLS = uint16(port)
	}
	return a, nil
}
