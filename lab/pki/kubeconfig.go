package pki

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig writes a kubeconfig to path, with the certificate called name and the API server at url. The file contains
// the certificate itself, so users can copy the file.
func (a *Authority) Kubeconfig(path, name, url string) error {
	var ca, cert, key []byte
	for file, data := range map[string]*[]byte{"ca.crt": &ca, name + ".crt": &cert, name + ".key": &key} {
		read, err := os.ReadFile(filepath.Join(a.dir, file))
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		*data = read
	}
	const cluster = "fairway-lab"
	config := api.NewConfig()
	config.Clusters[cluster] = &api.Cluster{Server: url, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[cluster] = &api.Context{Cluster: cluster, AuthInfo: name}
	config.CurrentContext = cluster
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return nil
}
