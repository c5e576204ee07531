package install

import (
	"context"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

const (
	gatewayAPI        = "v1.6.3" // the release whose CustomResourceDefinitions the tests use
	gatewayAPIVersion = "gateway.networking.k8s.io/bundle-version"
	gatewayAPIURL     = "https://github.com/kubernetes-sigs/gateway-api/releases/download/" + gatewayAPI + "/standard-install.yaml"
)

// noteGatewayAPI says which CustomResourceDefinitions of Gateway API the cluster has. They are others' too, so they stay as
// they are.
func (i *Installer) noteGatewayAPI(ctx context.Context, s Settings) error {
	if s.Values[keyGateways] != yes {
		return nil
	}
	found, err := i.API.Get(ctx, objects.Ref{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition", Name: "gateways.gateway.networking.k8s.io"})
	switch {
	case err != nil:
		return err
	case found == nil:
		i.say("note: the cluster has no CustomResourceDefinitions of Gateway API, so that only Ingresses count [kubectl apply --server-side -f %s]", gatewayAPIURL)
	case found.GetAnnotations()[gatewayAPIVersion] != gatewayAPI:
		i.say("note: the cluster's CustomResourceDefinitions of Gateway API are of release %q, and stay; Fairway is tested with %s", found.GetAnnotations()[gatewayAPIVersion], gatewayAPI)
	}
	return nil
}
