package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
	oneline "github.com/fairway-net/fairway/internal/text"
)

// A Snapshot is what gateways make of a cluster's objects, for commands that look once.
type Snapshot struct {
	*gateway.Compiler
	Objects map[gateway.Ref]gateway.Object
	// Assumed are Secrets that the reader may not see, and that count as good.
	Assumed []api.Name
	// Services has the endpoints of each port of the Services that routes name.
	Services map[api.PortName][]service.Endpoint

	statuses map[gateway.Ref]*status
}

// Set keeps an object, too.
func (s *Snapshot) Set(o gateway.Object) {
	s.Objects[o.Ref()] = o
	s.Compiler.Set(o)
}

// NewSnapshot returns a Snapshot without objects.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		Compiler: gateway.NewCompiler(gateway.Settings{}), Objects: map[gateway.Ref]gateway.Object{},
		Services: map[api.PortName][]service.Endpoint{}, statuses: map[gateway.Ref]*status{},
	}
}

// onceAdvice names the rights of Once.
const onceAdvice = "see --master, --kubeconfig and --timeout; the rights to list and watch are those of fairway-gateway in deploy/components/gateway/rbac.yaml"

// Once reads a cluster. namespace is where the controller keeps the bind ports.
func Once(ctx context.Context, cfg kube.Config, namespace string) (*Snapshot, error) {
	store := kube.New(cfg)
	o := Subscribe(store, "command", Config{Namespace: namespace, Statuses: true})
	if err := store.ReadOnce(ctx, o.Synced(), onceAdvice); err != nil {
		return nil, err
	}
	s := NewSnapshot()
	o.Update(s)
	if err := s.fetch(ctx, o.fetch); err != nil {
		return nil, err
	}
	for _, name := range s.Needs().Services {
		for port, endpoints := range o.Backends(name, service.Facts{}) {
			s.Services[port] = endpoints
		}
	}
	for kind, feed := range o.feeds {
		for _, name := range feed.Names() {
			if e, ok := feed.Get(name); ok && e.status != nil {
				s.statuses[gateway.Ref{Kind: kind, Name: name}] = e.status
			}
		}
	}
	return s, nil
}

// fetch reads the Secrets and ConfigMaps that objects name. Objects that need others are compiled again after them.
func (s *Snapshot) fetch(ctx context.Context, f *fetcher) error {
	tried := map[gateway.Ref]bool{}
	for again := true; again; {
		again = false
		s.Table()
		needs := s.Needs()
		for kind, names := range map[gateway.Kind][]api.Name{gateway.KindSecret: needs.Secrets, gateway.KindConfigMap: needs.ConfigMaps} {
			for _, name := range names {
				ref := gateway.Ref{Kind: kind, Name: name}
				if tried[ref] {
					continue
				}
				tried[ref], again = true, true
				object, err := f.read(ctx, ref)
				switch {
				case err != nil && kind == gateway.KindSecret && apierrors.IsForbidden(err):
					if err := s.Assume(name); err != nil {
						return err
					}
				case err != nil:
					return fmt.Errorf("read %s %s: %w", kind, name, oneline.RequestError(err))
				case object != nil:
					s.Set(object)
				}
			}
		}
	}
	slices.SortFunc(s.Assumed, api.Name.Compare)
	return nil
}

// Assume takes a Secret as good that the reader may not see.
func (s *Snapshot) Assume(name api.Name) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	s.Set(&gateway.Secret{Meta: gateway.Meta{Name: name}, Type: "kubernetes.io/tls", Data: map[string][]byte{
		"tls.crt": cert, "ca.crt": cert, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), "auth": []byte("unknown:{SHA}"),
	}})
	s.Assumed = append(s.Assumed, name)
	return nil
}

// Bind returns the process's port for a port of a Gateway, or of the Ingresses; 0: it is not served.
func (s *Snapshot) Bind(gate api.Name, port uint16) uint16 {
	if g, ok := s.Objects[gateway.Ref{Kind: gateway.KindGateway, Name: gate}].(*gateway.Gateway); ok {
		return g.Bind[gateway.BindKey{Proto: api.TCP, Port: port}]
	}
	return 0
}
