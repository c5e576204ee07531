package config

import (
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/fairway-net/fairway/internal/cli/configfile"
)

var kind = configfile.Kind{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "KubeProxyConfiguration"}

// readFile reads a KubeProxyConfiguration. It is strict, where kube-proxy only warns.
func readFile(path string) (*v1alpha1.KubeProxyConfiguration, error) {
	var kp v1alpha1.KubeProxyConfiguration
	if err := configfile.Read(path, kind, &kp); err != nil {
		return nil, err
	}
	return &kp, nil
}
