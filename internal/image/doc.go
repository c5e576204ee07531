// Package image writes container images from files of this machine, without Docker, a registry or a base image.
//
//	Tree ──Layer()──► layer.tar ─┐
//	 ▲                           ├─► Image{Names, Layers, Config} ──Write()──► image.tar
//	files, links, programs       │                                             ├ oci-layout, index.json
//	of this machine       (shared by many images)                              ├ manifest.json (docker load)
//	                                                                           └ blobs/sha256/… each once
//
// The package encapsulates how a dynamic program finds its libraries, how links of the host look inside an image, and the
// two archive formats (OCI layout, docker-archive) of loaders. Promises:
//
//   - A program that runs on this machine runs in the image. The image has the program's interpreter and every library
//     that the dynamic linker loads, at the linker's paths, with all links.
//   - The same files give the same bytes: entries are sorted, times are zero, owners are root.
//   - `ctr images import`, `docker load`, `podman load`, `skopeo copy oci-archive:` and readers of OCI layouts accept the
//     archive, with the images under their full names.
package image
